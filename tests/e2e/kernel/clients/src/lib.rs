//! The interface of the service. `binder-call` of libgbinder calls its methods by number: 1 is `caller`, 2 is `phone`.

use rsbinder::{interface, ParcelFileDescriptor};

pub const INTERFACE: &str = "test.ITenant";

#[interface(descriptor = "test.ITenant")]
pub trait ITenant {
    /// Returns the caller's user ID as the driver reports it.
    fn caller(&self) -> BinderResult<i32>;
    /// Returns the name of the phone in which the service runs.
    fn phone(&self) -> BinderResult<String>;
    /// Writes a line into the caller's file.
    fn write_to(&self, file: &ParcelFileDescriptor) -> BinderResult<()>;
}
