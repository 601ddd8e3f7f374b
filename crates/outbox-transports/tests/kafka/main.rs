//! Kafka: against librdkafka's cluster in memory, which speaks the real protocol on real sockets, and against the broker Tansu where
//! it is installed.
#![cfg(feature = "kafka")]

mod bed;
mod cluster;
#[path = "../conformance/mod.rs"]
mod conformance;
mod faults;
mod logs;
mod messages;
mod reader;
mod tansu;
mod tls;
