//! Long work: a bar for whoever watches, and a way to stop.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar on standard error, if that is a terminal.
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

/// Ctrl-C: from the first moment on, so that no batch is cut off half way.
pub(crate) struct Interrupt(tokio::sync::watch::Receiver<bool>);

impl Interrupt {
    pub(crate) fn listen() -> Self {
        let (said, heard) = tokio::sync::watch::channel(false);
        tokio::spawn(async move {
            if tokio::signal::ctrl_c().await.is_ok() {
                let _ = said.send(true);
            }
            // Held on to: a sender that is gone would look like a word said.
            std::future::pending::<()>().await;
        });
        Self(heard)
    }

    /// Waits that long, and says whether it was told to stop, before or meanwhile.
    pub(crate) async fn within(&mut self, time: Duration) -> bool {
        let told = self.0.wait_for(|told| *told);
        tokio::time::timeout(time, told).await.is_ok_and(|told| told.is_ok()) || *self.0.borrow()
    }
}
