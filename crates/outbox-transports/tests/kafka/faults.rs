//! Faults of brokers.
