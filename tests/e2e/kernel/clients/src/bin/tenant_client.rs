//! `tenant_client DEVICE PHONE`: finds a phone's service through a binder device, calls it, and gives it a file.

use rsbinder::{hub, ParcelFileDescriptor, ProcessState, Strong};
use std::{env, error::Error, fs::File, io::Read, os::fd::OwnedFd, process};
use tenant::{ITenant, INTERFACE};

fn main() -> Result<(), Box<dyn Error>> {
    let [device, phone] = <[String; 2]>::try_from(env::args().skip(1).collect::<Vec<_>>())
        .map_err(|_| "usage: tenant_client DEVICE PHONE")?;
    ProcessState::init(&device, 0)?;
    let name = format!("{INTERFACE}/{phone}");
    let tenant: Strong<dyn ITenant> = match hub::check_interface(&name) {
        Ok(found) => found,
        Err(error) => {
            println!("tenant_client: {name}: {error}");
            process::exit(1);
        }
    };
    println!("tenant_client: {name}: phone {}", tenant.phone()?);
    println!("tenant_client: the service was called by user {}", tenant.caller()?);
    let (read_end, write_end) = ParcelFileDescriptor::pipe()?;
    tenant.write_to(&write_end)?;
    drop(write_end);
    let mut text = String::new();
    File::from(OwnedFd::from(read_end)).read_to_string(&mut text)?;
    println!("tenant_client: the service has the file: {}", text.trim_end());
    Ok(())
}
