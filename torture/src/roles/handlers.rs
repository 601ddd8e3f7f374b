//! Handlers that do what an event's spec says and record each run.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outbox::{Context, Failure, HandlerTx, Outcome};

use crate::database::TestDatabase;
use crate::history::{HandlerOutcome, Op, Writer};
use crate::work::{Kind, Spec};

/// Shared by all handlers of a process.
#[derive(Clone, Debug)]
pub struct RecordingHandler {
    history: Arc<Writer>,
    runs: Arc<AtomicU64>,
    /// Holds marker files that count how often an event has aborted its process.
    folder: PathBuf,
}

impl RecordingHandler {
    /// Creates the handler of a process.
    pub fn new(history: Arc<Writer>, folder: PathBuf) -> Self {
        Self { history, runs: Arc::default(), folder }
    }

    fn start(&self, cx: &Context) -> RunRecord {
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
        let id = cx.id().to_string();
        self.history.record(Op::Started { run, id, seq: cx.seq(), attempt: cx.attempt() });
        RunRecord { run, history: self.history.clone(), outcome: Some(HandlerOutcome::Dropped) }
    }

    /// Whether to abort the process now: creates the next marker file unless the event has aborted
    /// as often as its spec says.
    fn must_abort(&self, spec: &Spec) -> bool {
        (0..spec.aborts).any(|n| {
            let mark = self.folder.join(format!("{}.abort{n}", spec.id));
            std::fs::File::options().write(true).create_new(true).open(mark).is_ok()
        })
    }
}

/// Records the end of a handler's run, however it ends.
struct RunRecord {
    run: u64,
    history: Arc<Writer>,
    outcome: Option<HandlerOutcome>,
}

impl RunRecord {
    fn finish(mut self, outcome: HandlerOutcome) {
        self.outcome = None;
        self.history.record(Op::Finished { run: self.run, how: outcome });
    }
}

impl Drop for RunRecord {
    fn drop(&mut self) {
        if let Some(dropped) = self.outcome {
            let how = if std::thread::panicking() { HandlerOutcome::Panicked } else { dropped };
            self.history.record(Op::Finished { run: self.run, how });
        }
    }
}

impl RecordingHandler {
    /// Does what the event's spec says.
    pub async fn handle(self, cx: Context) -> Result<Outcome, Failure> {
        let run = self.start(&cx);
        let spec: Spec = cx.payload()?;
        tokio::time::sleep(Duration::from_millis(u64::from(spec.takes))).await;
        if self.must_abort(&spec) {
            std::process::abort();
        }
        // Failing attempts come first, then panicking ones.
        let attempt = cx.attempt();
        if spec.kind == Kind::Doomed {
            run.finish(HandlerOutcome::Dead);
            return Ok(Outcome::Dead("doomed".to_owned()));
        }
        if spec.kind == Kind::Worn || attempt <= spec.fails {
            run.finish(HandlerOutcome::Failed);
            return Err(Failure::retry("failed as its spec says"));
        }
        assert!(attempt > spec.fails + spec.panics, "panicked as its spec says");
        run.finish(HandlerOutcome::Done);
        Ok(Outcome::Done)
    }
}

impl RecordingHandler {
    /// Handles a row that is not part of the workload: always succeeds.
    pub async fn handle_foreign(self, cx: Context) {
        self.start(&cx).finish(HandlerOutcome::Done);
    }

    /// Books an event in the transaction that settles it. `table` is the table of events.
    pub async fn book<DB: TestDatabase>(
        self,
        table: Arc<str>,
        cx: Context,
        mut tx: HandlerTx<DB>,
    ) -> Result<(), sqlx::Error> {
        let run = self.start(&cx);
        let booked = async {
            let entry = format!("INSERT INTO {table}_ledger (event_id) VALUES ('{}')", cx.id());
            DB::execute_sql(&mut tx, &entry).await?;
            DB::execute_sql(&mut tx, &format!("UPDATE {table}_account SET balance = balance + 1")).await
        };
        let booked = booked.await;
        run.finish(if booked.is_ok() { HandlerOutcome::Done } else { HandlerOutcome::Failed });
        booked.map(drop)
    }
}
