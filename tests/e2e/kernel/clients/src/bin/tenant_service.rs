//! `tenant_service DEVICE PHONE`: registers a service, named after the phone, through a binder device, and serves it.

use rsbinder::thread_state::{calling_caller, Caller};
use rsbinder::{hub, BinderResult, Interface, ParcelFileDescriptor, ProcessState, StatusCode};
use std::{env, error::Error, fs, io::Write, os::fd::OwnedFd, os::unix::fs::MetadataExt};
use tenant::{BnTenant, ITenant, INTERFACE};

struct Tenant {
    phone: String,
}

impl Interface for Tenant {}

impl ITenant for Tenant {
    fn caller(&self) -> BinderResult<i32> {
        match calling_caller() {
            Some(Caller::Kernel { uid, .. }) => {
                println!("tenant_service: called by user {uid}");
                Ok(uid as i32)
            }
            _ => Err(StatusCode::BadType.into()),
        }
    }

    fn phone(&self) -> BinderResult<String> {
        Ok(self.phone.clone())
    }

    fn write_to(&self, file: &ParcelFileDescriptor) -> BinderResult<()> {
        let mut file = fs::File::from(OwnedFd::from(file.try_clone()?));
        let user = fs::metadata("/proc/self").map_or(u32::MAX, |process| process.uid());
        writeln!(file, "written by user {user}").map_err(|_| StatusCode::BadValue.into())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let [device, phone] = <[String; 2]>::try_from(env::args().skip(1).collect::<Vec<_>>())
        .map_err(|_| "usage: tenant_service DEVICE PHONE")?;
    ProcessState::init(&device, 0)?;
    ProcessState::start_thread_pool();
    let name = format!("{INTERFACE}/{phone}");
    hub::add_service(&name, BnTenant::new_binder(Tenant { phone }))?;
    println!("tenant_service: registered {name} on {device}");
    Ok(ProcessState::join_thread_pool()?)
}
