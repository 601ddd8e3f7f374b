//! Progress bars, and Ctrl-C for long operations.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Creates a progress bar on standard error; hidden if that is not a terminal.
pub(crate) fn bar(total: u64, done: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = format!("{{bar:30}} {{human_pos}} of {{human_len}} {done}, {{per_sec}}, {{eta}} left");
    let bar = ProgressBar::new(total);
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar
}

/// Receiver of Ctrl-C. Created before the work begins, so that Ctrl-C does not interrupt a batch.
pub(crate) struct Interrupt(tokio::sync::watch::Receiver<bool>);

impl Interrupt {
    pub(crate) fn listen() -> Self {
        let (sender, receiver) = tokio::sync::watch::channel(false);
        tokio::spawn(async move {
            if tokio::signal::ctrl_c().await.is_ok() {
                let _ = sender.send(true);
            }
            // Keeps the sender alive: a dropped sender would make `wait` return early.
            std::future::pending::<()>().await;
        });
        Self(receiver)
    }

    /// Waits for this time, or until Ctrl-C. Returns whether Ctrl-C was received, before or
    /// meanwhile.
    pub(crate) async fn wait(&mut self, time: Duration) -> bool {
        let stopped = self.0.wait_for(|stopped| *stopped);
        tokio::time::timeout(time, stopped).await.is_ok_and(|stopped| stopped.is_ok()) || *self.0.borrow()
    }
}
