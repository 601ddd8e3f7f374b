//! Result of checking whether a destination accepts events, without sending one.

/// Reason why a probe failed.
#[derive(Debug)]
pub(crate) enum ProbeError {
    /// The server does not answer.
    NoReply,
    /// The server answers that it accepts no events, for this reason.
    Rejected(String),
}
