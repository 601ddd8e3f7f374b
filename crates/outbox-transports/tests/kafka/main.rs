//! Kafka, against librdkafka's cluster in memory: it speaks the real protocol on real sockets.
#![cfg(feature = "kafka")]

mod bed;
mod cluster;
#[path = "../conformance/mod.rs"]
mod conformance;
mod faults;
mod logs;
mod messages;
