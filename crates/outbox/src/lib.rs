#![doc = "outbox"]
mod error;
mod event;
mod sql;
mod store;
pub use error::*;
pub use event::*;
pub use sql::*;
pub use store::*;
#[cfg(feature = "testing")]
pub mod testing;
