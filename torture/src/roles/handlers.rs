//! Handlers that do what the event says, and write down that they did.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use outbox::{Cx, Failure, Handler, Outcome, Tx, TxHandler};

use crate::base::Base;
use crate::history::{Said, Scribe, What};
use crate::work::{Kind, Spec};

/// What all handlers of a process share.
#[derive(Clone, Debug)]
pub struct Hand {
    scribe: Arc<Scribe>,
    runs: Arc<AtomicU64>,
    /// Where it is noted how often an event has ended its process.
    folder: PathBuf,
}

impl Hand {
    /// Of a process.
    pub fn new(scribe: Arc<Scribe>, folder: PathBuf) -> Self {
        Self { scribe, runs: Arc::default(), folder }
    }

    fn start(&self, cx: &Cx) -> Run {
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
        let id = cx.id().to_string();
        self.scribe.note(What::Started { run, id, seq: cx.seq(), attempt: cx.attempt() });
        Run { run, scribe: self.scribe.clone(), said: Some(Said::Dropped) }
    }

    /// How often this event has ended a process; counts one more if that is fewer than it may.
    fn ends_its_process(&self, spec: &Spec) -> bool {
        (0..spec.aborts).any(|n| {
            let mark = self.folder.join(format!("{}.abort{n}", spec.id));
            std::fs::File::options().write(true).create_new(true).open(mark).is_ok()
        })
    }
}

/// A run of a handler. However it ends, that is written down.
struct Run {
    run: u64,
    scribe: Arc<Scribe>,
    said: Option<Said>,
}

impl Run {
    fn says(mut self, said: Said) {
        self.said = None;
        self.scribe.note(What::Finished { run: self.run, how: said });
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(dropped) = self.said {
            let how = if std::thread::panicking() { Said::Panicked } else { dropped };
            self.scribe.note(What::Finished { run: self.run, how });
        }
    }
}

#[async_trait]
impl Handler for Hand {
    async fn handle(&self, cx: Cx) -> Result<Outcome, Failure> {
        let run = self.start(&cx);
        let spec: Spec = cx.payload()?;
        tokio::time::sleep(Duration::from_millis(u64::from(spec.takes))).await;
        if self.ends_its_process(&spec) {
            std::process::abort();
        }
        // The attempts that are to fail come first, then those that panic.
        let attempt = cx.attempt();
        if spec.kind == Kind::Doomed {
            run.says(Said::Dead);
            return Ok(Outcome::Dead("doomed".to_owned()));
        }
        if spec.kind == Kind::Worn || attempt <= spec.fails {
            run.says(Said::Failed);
            return Err(Failure::retry("as it was told"));
        }
        assert!(attempt > spec.fails + spec.panics, "as it was told");
        run.says(Said::Done);
        Ok(Outcome::Done)
    }
}

/// Handles rows that are not part of the work: whatever they hold, they are done.
#[derive(Clone, Debug)]
pub struct Foreign(pub Hand);

#[async_trait]
impl Handler for Foreign {
    async fn handle(&self, cx: Cx) -> Result<Outcome, Failure> {
        self.0.start(&cx).says(Said::Done);
        Ok(Outcome::Done)
    }
}

/// Books an event in the transaction that settles it.
#[derive(Debug)]
pub struct Book {
    /// What all handlers share.
    pub hand: Hand,
    /// The table of events.
    pub table: String,
}

#[async_trait]
impl<DB: Base> TxHandler<DB> for Book {
    async fn handle(&self, cx: Cx, tx: &mut Tx<'static, DB>) -> Result<Outcome, Failure> {
        let run = self.hand.start(&cx);
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
                run.says(Said::Done);
                Ok(Outcome::Done)
            }
            Err(error) => {
                run.says(Said::Failed);
                Err(error.into())
            }
        }
    }
}
