//! Kafka: against librdkafka's mock cluster, which uses the real protocol on real sockets, and
//! against the broker Tansu where it is installed.
#![cfg(feature = "kafka")]

mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod faults;
mod harness;
mod logs;
mod messages;
mod reader;
mod tansu;
mod tls;
