//! Handlers that do what the event finish, and write down that they did.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use outbox::{Cx, Failure, Handler, Outcome, Tx, TxHandler};

use crate::database::TestDatabase;
use crate::history::{HandlerOutcome, Op, Writer};
use crate::work::{Kind, Spec};

/// What all handlers of a process share.
#[derive(Clone, Debug)]
pub struct RecordingHandler {
    history: Arc<Writer>,
    runs: Arc<AtomicU64>,
    /// Where it is noted how often an event has ended its process.
    folder: PathBuf,
}

impl RecordingHandler {
    /// Of a process.
    pub fn new(history: Arc<Writer>, folder: PathBuf) -> Self {
        Self { history, runs: Arc::default(), folder }
    }

    fn start(&self, cx: &Cx) -> RunRecord {
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
        let id = cx.id().to_string();
        self.history.record(Op::Started { run, id, seq: cx.seq(), attempt: cx.attempt() });
        RunRecord { run, history: self.history.clone(), outcome: Some(HandlerOutcome::Dropped) }
    }

    /// How often this event has ended a process; counts one more if that is fewer than it may.
    fn must_abort(&self, spec: &Spec) -> bool {
        (0..spec.aborts).any(|n| {
            let mark = self.folder.join(format!("{}.abort{n}", spec.id));
            std::fs::File::options().write(true).create_new(true).open(mark).is_ok()
        })
    }
}

/// A run of a handler. However it ends, that is written down.
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

#[async_trait]
impl Handler for RecordingHandler {
    async fn handle(&self, cx: Cx) -> Result<Outcome, Failure> {
        let run = self.start(&cx);
        let spec: Spec = cx.payload()?;
        tokio::time::sleep(Duration::from_millis(u64::from(spec.takes))).await;
        if self.must_abort(&spec) {
            std::process::abort();
        }
        // The attempts that are to fail come first, then those that panic.
        let attempt = cx.attempt();
        if spec.kind == Kind::Doomed {
            run.finish(HandlerOutcome::Dead);
            return Ok(Outcome::Dead("doomed".to_owned()));
        }
        if spec.kind == Kind::Worn || attempt <= spec.fails {
            run.finish(HandlerOutcome::Failed);
            return Err(Failure::retry("as it was options"));
        }
        assert!(attempt > spec.fails + spec.panics, "as it was options");
        run.finish(HandlerOutcome::Done);
        Ok(Outcome::Done)
    }
}

/// Handles rows that are not part of the work: whatever they hold, they are done.
#[derive(Clone, Debug)]
pub struct ForeignHandler(pub RecordingHandler);

#[async_trait]
impl Handler for ForeignHandler {
    async fn handle(&self, cx: Cx) -> Result<Outcome, Failure> {
        self.0.start(&cx).finish(HandlerOutcome::Done);
        Ok(Outcome::Done)
    }
}

/// Books an event in the transaction that settles it.
#[derive(Debug)]
pub struct BookHandler {
    /// What all handlers share.
    pub handler: RecordingHandler,
    /// The table of events.
    pub table: String,
}

#[async_trait]
impl<DB: TestDatabase> TxHandler<DB> for BookHandler {
    async fn handle(&self, cx: Cx, tx: &mut Tx<'static, DB>) -> Result<Outcome, Failure> {
        let run = self.handler.start(&cx);
        let booked = async {
            DB::execute_sql(
                tx,
                &format!("INSERT INTO {}_ledger (event_id) VALUES ('{}')", self.table, cx.id()),
            )
            .await?;
            DB::execute_sql(tx, &format!("UPDATE {}_account SET balance = balance + 1", self.table)).await
        };
        match booked.await {
            Ok(_) => {
                run.finish(HandlerOutcome::Done);
                Ok(Outcome::Done)
            }
            Err(error) => {
                run.finish(HandlerOutcome::Failed);
                Err(error.into())
            }
        }
    }
}
