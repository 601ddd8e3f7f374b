//! What is logged, by us and by clients.

use std::io::Write;
use std::sync::{Arc, Mutex};

use tracing_subscriber::EnvFilter;

/// Clients may write down their packets at TRACE; we do not, at any level.
const LEVELS: &str = "debug,outbox=trace,outbox_transports=trace";

#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Runs it on a thread of its own, with all the tasks that it spawns, and returns what was logged.
pub fn of<F: Future<Output = ()>>(work: impl FnOnce() -> F + Send) -> String {
    let page = Page::default();
    let writer = page.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(LEVELS))
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            tracing::subscriber::with_default(subscriber, || {
                tracing::debug!("the log is read");
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(work());
            });
        });
        thread.join().unwrap();
    });
    let text = String::from_utf8_lossy(&page.0.lock().unwrap()).into_owned();
    assert!(text.contains("the log is read"));
    text
}
