//! What the process is told from outside.

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and Ctrl-C to stop, SIGHUP to read the settings again.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// Without a file there is nothing to read again, and a terminal that hangs up ends us as it ends others.
    hang_up: Option<Signal>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    Stop,
    Reload,
}

impl Signals {
    pub(crate) fn new(reloads: bool) -> Result<Self> {
        let to_hear = |kind| signal(kind).context("cannot wait for signals");
        Ok(Self {
            terminate: to_hear(SignalKind::terminate())?,
            interrupt: to_hear(SignalKind::interrupt())?,
            hang_up: if reloads { Some(to_hear(SignalKind::hangup())?) } else { None },
        })
    }

    pub(crate) async fn next(&mut self) -> Told {
        let hang_up = async {
            match &mut self.hang_up {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => Told::Stop,
            _ = self.interrupt.recv() => Told::Stop,
            () = hang_up => Told::Reload,
        }
    }

    /// Waits until it is told to stop.
    pub(crate) async fn stop(&mut self) {
        while self.next().await != Told::Stop {}
    }
}
