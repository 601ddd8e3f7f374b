//! The outbox command.
fn main() {}
