//! Signals of a relay process.

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listener for SIGTERM and Ctrl-C, which stop the process, and SIGHUP, which reloads the settings.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// `None` without a settings file: then SIGHUP ends the process, as by default.
    hang_up: Option<Signal>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignalAction {
    Stop,
    Reload,
}

impl Signals {
    pub(crate) fn new(reloads: bool) -> Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: if reloads { Some(listen(SignalKind::hangup())?) } else { None },
        })
    }

    pub(crate) async fn next(&mut self) -> SignalAction {
        let hang_up = async {
            match &mut self.hang_up {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => SignalAction::Stop,
            _ = self.interrupt.recv() => SignalAction::Stop,
            () = hang_up => SignalAction::Reload,
        }
    }

    /// Waits for a signal to stop.
    pub(crate) async fn stop(&mut self) {
        while self.next().await != SignalAction::Stop {}
    }
}
