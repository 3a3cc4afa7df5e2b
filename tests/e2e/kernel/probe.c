/*
 * Tries operations on binder devices inside a container: probe OPERATION OPERAND... [OPERATION OPERAND...]...
 *
 * Prints a line for each operation: "ok", a number, a text, or the name of the errno. Opened devices stay open until the
 * end.
 */
#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64 /* Inodes of the guest's files have numbers beyond 32 bits. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/android/binder.h>
#include <linux/android/binderfs.h>
#include <linux/bpf.h>
#include <linux/if_tun.h>
#include <linux/loop.h>
#include <linux/vhost.h>
#include <net/if.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Each operation returns -1 with errno set, or a non-negative number; 0 is printed as "ok", or as the text if it is set. */

static char text[65536];

static int do_open(char **operand) { return open(operand[0], O_RDWR | O_CLOEXEC) < 0 ? -1 : 0; }

static int do_version(char **operand)
{
	struct binder_version version = {0};
	int file = open(operand[0], O_RDWR | O_CLOEXEC);

	return file < 0 || ioctl(file, BINDER_VERSION, &version) ? -1 : version.protocol_version;
}

static int kept = -1; /* The device that "keep" opened. */

/* Opens a device as libbinder does, with a mapping for incoming transactions. */
static int open_mapped(const char *path)
{
	int file = open(path, O_RDWR | O_CLOEXEC);

	if (file >= 0 && mmap(NULL, 65536, PROT_READ, MAP_PRIVATE, file, 0) == MAP_FAILED)
		return -1;
	return file;
}

static int do_manage(char **operand)
{
	int file = open_mapped(operand[0]);

	return file < 0 ? -1 : ioctl(file, BINDER_SET_CONTEXT_MGR, 0);
}

static int do_keep(char **operand)
{
	kept = open_mapped(operand[0]);
	return kept < 0 ? -1 : 0;
}

/* Sends a one-way transaction to the context manager: ok once it is queued, ESRCH without a context manager. */
static int call(int file)
{
	struct {
		uint32_t command;
		struct binder_transaction_data data;
	} __attribute__((packed)) message = {BC_TRANSACTION, {.code = 1, .flags = TF_ONE_WAY}};
	uint32_t answers[64];
	struct binder_write_read exchange = {.write_size = sizeof(message), .write_buffer = (uintptr_t)&message,
					     .read_size = sizeof(answers), .read_buffer = (uintptr_t)answers};

	if (ioctl(file, BINDER_WRITE_READ, &exchange))
		return -1;
	for (size_t i = 0; i < exchange.read_consumed / sizeof(*answers); i++) {
		if (answers[i] == BR_TRANSACTION_COMPLETE)
			return 0;
		if (answers[i] != BR_NOOP && answers[i] != BR_SPAWN_LOOPER)
			break;
	}
	errno = ESRCH;
	return -1;
}

static int do_call(char **operand)
{
	int file = open_mapped(operand[0]);

	return file < 0 ? -1 : call(file);
}

static int do_call_kept(char **operand) { (void)operand; return call(kept); }

static int do_become(char **operand)
{
	int user = atoi(operand[0]);

	return setgroups(0, NULL) || setresgid(user, user, user) ? -1 : setresuid(user, user, user);
}

/* Waits for a file that a process outside creates. */
static int do_await(char **operand)
{
	fflush(stdout);
	for (int tries = 0; tries < 6000; tries++) {
		if (!access(operand[0], F_OK))
			return 0;
		usleep(100000);
	}
	errno = ETIMEDOUT;
	return -1;
}

static int do_add(char **operand)
{
	struct binderfs_device device = {0};
	int control = open(operand[0], O_RDONLY | O_CLOEXEC);

	strncpy(device.name, operand[1], BINDERFS_MAX_NAME);
	return control < 0 ? -1 : ioctl(control, BINDER_CTL_ADD, &device);
}

static int do_mknod(char **operand)
{
	return mknod(operand[0], S_IFCHR | 0666, makedev(atoi(operand[1]), atoi(operand[2])));
}

static int do_mknod_block(char **operand)
{
	return mknod(operand[0], S_IFBLK | 0666, makedev(atoi(operand[1]), atoi(operand[2])));
}

/* Attaches an image to a loop device until its last use ends. */
static int do_attach_image(char **operand)
{
	int device = open(operand[0], O_RDWR | O_CLOEXEC), image = open(operand[1], O_RDONLY | O_CLOEXEC);
	struct loop_config config = {.fd = image, .info.lo_flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_READ_ONLY};

	return device < 0 || image < 0 ? -1 : ioctl(device, LOOP_CONFIGURE, &config);
}

/* Takes the CID of the container for a virtual machine until the end, and returns it: EADDRINUSE if another has it. */
static int do_take_cid(char **operand)
{
	const char *variable = getenv("VSOCK_GUEST_CID");
	uint64_t cid = variable ? strtoull(variable, NULL, 10) : 0;
	int file = open(operand[0], O_RDWR | O_CLOEXEC);

	return file < 0 || ioctl(file, VHOST_VSOCK_SET_GUEST_CID, &cid) ? -1 : (int)cid;
}

static int do_own(char **operand)
{
	int file = open(operand[0], O_RDWR | O_CLOEXEC);

	return file < 0 ? -1 : ioctl(file, VHOST_SET_OWNER);
}

/* Makes a network device of the container. */
static int do_tap(char **operand)
{
	struct ifreq request = {.ifr_name = "cvd-tap0", .ifr_flags = IFF_TAP | IFF_NO_PI};
	int file = open(operand[0], O_RDWR | O_CLOEXEC);

	return file < 0 ? -1 : ioctl(file, TUNSETIFF, &request);
}

static int do_see(char **operand)
{
	struct stat seen;

	return lstat(operand[0], &seen);
}

/* Prints the names in a directory, sorted and separated by commas. */
static int do_list(char **operand)
{
	struct dirent **entries;
	int count = scandir(operand[0], &entries, NULL, alphasort);

	for (int i = 0; i < count; i++) {
		if (strcmp(entries[i]->d_name, ".") && strcmp(entries[i]->d_name, ".."))
			snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", *text ? "," : "", entries[i]->d_name);
	}
	return count < 0 ? -1 : 0;
}

/* Prints the device number as MAJOR:MINOR. */
static int do_number(char **operand)
{
	struct stat seen;

	if (stat(operand[0], &seen))
		return -1;
	snprintf(text, sizeof(text), "%u:%u", major(seen.st_rdev), minor(seen.st_rdev));
	return 0;
}

static int do_unlink(char **operand) { return unlink(operand[0]); }
static int do_rename(char **operand) { return rename(operand[0], operand[1]); }
static int do_chmod(char **operand) { return chmod(operand[0], 0600); }
static int do_chown(char **operand) { return chown(operand[0], 1000, 1000); }
static int do_mkdir(char **operand) { return mkdir(operand[0], 0777); }
static int do_create(char **operand) { return open(operand[0], O_WRONLY | O_CREAT | O_EXCL, 0666) < 0 ? -1 : 0; }

/* Enters a user and a mount namespace as their root, which allows mount(2). */
static int do_unshare(char **operand)
{
	int map;

	(void)operand;
	if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
		return -1;
	map = open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
	return map < 0 || write(map, "0 0 1", 5) != 5 ? -1 : 0;
}

/* Writes to an existing file. */
static int do_write(char **operand)
{
	int file = open(operand[0], O_WRONLY | O_CLOEXEC);

	return file < 0 || write(file, operand[1], strlen(operand[1])) < 0 ? -1 : 0;
}

static int do_connect(char **operand)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(operand[1]))};
	int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (file < 0 || inet_pton(AF_INET, operand[0], &address.sin_addr) != 1)
		return -1;
	return connect(file, (struct sockaddr *)&address, sizeof(address));
}

static int do_wait(char **operand) { (void)operand; fflush(stdout); return pause(); }
static int do_mount(char **operand) { return mount("binder", operand[0], "binder", 0, NULL); }
static int do_mount_logs(char **operand) { return mount("binder", operand[0], "binder", 0, "stats=global"); }
static int do_mount_as(char **operand)
{
	return mount(operand[0], operand[1], operand[0], 0, strcmp(operand[2], "-") ? operand[2] : NULL);
}
static int do_mount_disk(char **operand) { return mount(operand[0], operand[1], "ext4", MS_RDONLY, NULL); }
static int do_bind(char **operand) { return mount(operand[0], operand[1], NULL, MS_BIND, NULL); }
static int do_move(char **operand) { return mount(operand[0], operand[1], NULL, MS_MOVE, NULL); }

static int detached = -1; /* The mount without a path that "detach" made. */

static int do_detach(char **operand)
{
	int file_system = syscall(SYS_fsopen, operand[0], FSOPEN_CLOEXEC);

	if (file_system < 0 || syscall(SYS_fsconfig, file_system, FSCONFIG_CMD_CREATE, NULL, NULL, 0))
		return -1;
	detached = syscall(SYS_fsmount, file_system, FSMOUNT_CLOEXEC, 0);
	return detached < 0 ? -1 : 0;
}

static int do_attach(char **operand)
{
	return syscall(SYS_move_mount, detached, "", AT_FDCWD, operand[0], MOVE_MOUNT_F_EMPTY_PATH);
}

/* Detaches the programs that filter devices from a cgroup, by a descriptor of its directory. */
static int do_detach_filter(char **operand)
{
	uint32_t ids[16];
	int group = open(operand[0], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	union bpf_attr query = {.query = {.target_fd = group, .attach_type = BPF_CGROUP_DEVICE}};

	query.query.prog_ids = (uintptr_t)ids;
	query.query.prog_cnt = sizeof(ids) / sizeof(*ids);
	if (group < 0 || syscall(SYS_bpf, BPF_PROG_QUERY, &query, sizeof(query)))
		return -1;
	for (uint32_t i = 0; i < query.query.prog_cnt; i++) {
		union bpf_attr get = {.prog_id = ids[i]};
		int program = syscall(SYS_bpf, BPF_PROG_GET_FD_BY_ID, &get, sizeof(get));
		union bpf_attr detach = {.target_fd = group, .attach_bpf_fd = program, .attach_type = BPF_CGROUP_DEVICE};

		if (program < 0 || syscall(SYS_bpf, BPF_PROG_DETACH, &detach, sizeof(detach)))
			return -1;
	}
	return 0;
}

static int do_remount(char **operand) { return mount(NULL, operand[0], NULL, MS_REMOUNT | MS_BIND, NULL); }
static int do_umount(char **operand) { return umount2(operand[0], MNT_DETACH); }

/* Changes the options of the file system itself, which all its mounts have. */
static int do_configure(char **operand) { return mount(NULL, operand[0], NULL, MS_REMOUNT, operand[1]); }
static int do_freeze(char **operand) { return mount(NULL, operand[0], NULL, MS_REMOUNT | MS_RDONLY, NULL); }

static const struct {
	const char *name;
	int operands;
	int (*run)(char **operand);
} operations[] = {
	{"open", 1, do_open},     {"version", 1, do_version}, {"manage", 1, do_manage}, {"add", 2, do_add},
	{"mknod", 3, do_mknod},   {"see", 1, do_see},         {"unlink", 1, do_unlink}, {"rename", 2, do_rename},
	{"chmod", 1, do_chmod},   {"mount", 1, do_mount},     {"remount", 1, do_remount},
	{"wait", 0, do_wait},     {"keep", 1, do_keep},       {"call", 1, do_call},     {"call-kept", 0, do_call_kept},
	{"become", 1, do_become}, {"await", 1, do_await},     {"chown", 1, do_chown},   {"mkdir", 1, do_mkdir},
	{"create", 1, do_create}, {"unshare", 0, do_unshare}, {"connect", 2, do_connect}, {"list", 1, do_list},
	{"number", 1, do_number}, {"umount", 1, do_umount},   {"configure", 2, do_configure},
	{"freeze", 1, do_freeze}, {"mount-logs", 1, do_mount_logs}, {"write", 2, do_write},
	{"mount-as", 3, do_mount_as}, {"bind", 2, do_bind},   {"move", 2, do_move},
	{"detach", 1, do_detach}, {"attach", 1, do_attach},   {"detach-filter", 1, do_detach_filter},
	{"mknod-block", 3, do_mknod_block},
	{"attach-image", 2, do_attach_image},                 {"mount-disk", 2, do_mount_disk},
	{"take-cid", 1, do_take_cid}, {"own", 1, do_own},     {"tap", 1, do_tap},
};

static int run_one(char **words)
{
	for (size_t i = 0; i < sizeof(operations) / sizeof(*operations); i++) {
		if (strcmp(words[0], operations[i].name))
			continue;
		*text = 0;
		int result = operations[i].run(words + 1);
		if (result > 0)
			printf("%d\n", result);
		else if (result)
			puts(strerrorname_np(errno));
		else
			puts(*text ? text : "ok");
		return 1 + operations[i].operands;
	}
	fprintf(stderr, "probe: no operation %s\n", words[0]);
	exit(2);
}

int main(int count, char **words)
{
	for (int next = 1; next < count;)
		next += run_one(words + next);
	return 0;
}
