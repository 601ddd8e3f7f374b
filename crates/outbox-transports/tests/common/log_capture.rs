//! Captures log lines of this crate and of the client libraries.

use std::io::Write;
use std::sync::{Arc, Mutex};

use tracing_subscriber::EnvFilter;

/// Client libraries may log packets at TRACE; this crate must not, at any level.
const LEVELS: &str = "debug,outbox=trace,outbox_transports=trace";

#[derive(Clone, Default)]
struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl Write for LogBuffer {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Runs `work` and the tasks that it spawns on its own thread, and returns the captured log.
pub fn capture<F: Future<Output = ()>>(work: impl FnOnce() -> F + Send) -> String {
    let buffer = LogBuffer::default();
    let writer = buffer.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(LEVELS))
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            tracing::subscriber::with_default(subscriber, || {
                tracing::debug!("log capture works");
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(work());
            });
        });
        thread.join().unwrap();
    });
    let text = String::from_utf8_lossy(&buffer.0.lock().unwrap()).into_owned();
    assert!(text.contains("log capture works"));
    text
}
