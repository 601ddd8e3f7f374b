//! Message brokers and a pooler. Tests start them with `outbox-testbed`; here they are only
//! installed.

use crate::program;

/// A program and its Debian package.
const ALL: [(&str, &str); 6] = [
    ("nats-server", "nats-server"),
    ("redis-server", "redis-server"),
    ("mosquitto", "mosquitto"),
    ("rabbitmq-server", "rabbitmq-server"),
    ("pgbouncer", "pgbouncer"),
    ("openssl", "openssl"),
];

pub(crate) fn missing_packages() -> impl Iterator<Item = &'static str> {
    ALL.iter().filter(|(program, _)| program::find(program).is_none()).map(|(_, package)| *package)
}

/// The torture test's broker and pooler, and the library that shifts the clocks of its processes.
pub(crate) fn missing_for_torture() -> impl Iterator<Item = &'static str> {
    [("nats-server", "nats-server"), ("faketime", "faketime"), ("pgbouncer", "pgbouncer")]
        .into_iter()
        .filter(|(program, _)| program::find(program).is_none())
        .map(|(_, package)| package)
}
