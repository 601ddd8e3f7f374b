//! Help for testing: your own code that writes events, and stores of your own.
//!
//! Behind the feature `testing`.

pub mod conformance;
