//! Settling: writes the verdicts on events, and counts the steps of joins among them.

use std::borrow::Cow;
use std::collections::HashMap;

use super::begin::begin_on;
use super::dialect::{Database, Dialect, Noting, Value, Which};
use super::store::SqlStore;
use crate::error::Result;
use crate::join::Step;
use crate::store::{Completion, Holder, Settled, Settlement, Verdict, short_error};

impl<DB: Database> SqlStore<DB> {
    /// The verdicts that this holder may settle, as far as that is known without the database.
    pub(super) fn allowed<'a>(&self, by: &Holder, settlements: &'a [Settlement]) -> Cow<'a, [Settlement]> {
        match by {
            Holder::Lease { owner, .. } if DB::LISTS => self.batches.allowed(owner, settlements),
            _ => Cow::Borrowed(settlements),
        }
    }

    /// Writes verdicts: those on plain events in one to three statements, then those on steps of
    /// joins.
    pub(super) async fn settle_batch(
        &self,
        by: &Holder,
        completion: Completion,
        settlements: &[Settlement],
    ) -> Result<Settled> {
        let mut batches = batches::<DB>(by, completion, settlements, Which::Plain);
        let moved = match &mut *batches {
            [] => 0,
            // A single statement is a transaction.
            [BatchStatement { template, values, .. }] => self.run(template, std::mem::take(values)).await?,
            several => self.retried(|| self.settle_plain(several)).await?,
        };
        if moved == settlements.len() as u64 {
            return Ok(Settled { moved, wrote: false });
        }
        // The others are stale, or steps of joins.
        let settled = self.retried(|| self.settle_steps(by, completion, settlements)).await?;
        Ok(Settled { moved: moved + settled.moved, ..settled })
    }

    /// Runs statements in one transaction. Returns how many events they settled.
    async fn settle_plain(&self, batches: &[BatchStatement]) -> Result<u64> {
        let mut tx = begin_on(&self.pools.relay).await?;
        let moved = self.run_batches(&mut tx, batches).await?;
        if moved.is_some() {
            tx.commit().await?;
        } else {
            tx.rollback().await?;
        }
        Ok(moved.unwrap_or_default())
    }

    /// Runs statements in the transaction of this connection. `None`: the caller must roll back,
    /// because a new leader has taken over the whole table since attempts were recorded.
    async fn run_batches(
        &self,
        conn: &mut DB::Connection,
        batches: &[BatchStatement],
    ) -> Result<Option<u64>> {
        let (mut moved, mut noted) = (0, 0);
        for BatchStatement { template, values, part } in batches {
            let touched = DB::run(conn, self.render(template), values.clone()).await?;
            match part {
                Part::Note => noted = touched,
                Part::Rest if touched < noted => return Ok(None),
                Part::Done | Part::Rest => moved += touched,
            }
        }
        Ok(Some(moved))
    }

    async fn settle_steps(
        &self,
        by: &Holder,
        completion: Completion,
        settlements: &[Settlement],
    ) -> Result<Settled> {
        let mut tx = begin_on(&self.pools.relay).await?;
        let settled = self.settle_on(&mut tx, by, completion, settlements).await?;
        if settled.moved > 0 {
            tx.commit().await?;
        } else {
            tx.rollback().await?;
        }
        Ok(settled)
    }

    /// Writes verdicts in the transaction of this connection, and counts them as steps of joins. If
    /// no event was settled, the caller must roll back.
    ///
    /// The rows are locked first: a transaction that attaches an event to a join either commits
    /// before and is seen here, or runs after this one and sees the verdict.
    pub(crate) async fn settle_on(
        &self,
        conn: &mut DB::Connection,
        by: &Holder,
        completion: Completion,
        settlements: &[Settlement],
    ) -> Result<Settled> {
        let settlements = &*self.allowed(by, settlements);
        let mut values = Vec::from(holder_values(by));
        values.extend(batch_values::<DB>(&settlements.iter().collect::<Vec<_>>(), false));
        let mut held = HashMap::new();
        for row in DB::fetch(conn, self.render(&DB::hold_batch(by)), values).await? {
            if let Some(id) = DB::text(&row, 0)? {
                held.insert(id, DB::int(&row, 1)? == Some(1));
            }
        }
        let ours: Vec<Settlement> =
            settlements.iter().filter(|s| held.contains_key(s.id.as_str())).cloned().collect();
        let batches = batches::<DB>(by, completion, &ours, Which::All);
        let moved = self.run_batches(conn, &batches).await?.unwrap_or_default();
        if moved < ours.len() as u64 {
            // A new leader has taken over the whole table since the rows were locked: no verdict is
            // valid.
            return Ok(Settled::default());
        }
        let became = |s: &Settlement| match s.verdict {
            Verdict::Done => Some(Step::Completed),
            Verdict::Dead { .. } => Some(Step::Failed),
            Verdict::Again { .. } | Verdict::Released | Verdict::ReleasedSuspect => None,
        };
        let steps: HashMap<&str, Step> = ours
            .iter()
            .filter(|s| held[s.id.as_str()])
            .filter_map(|s| Some((s.id.as_str(), became(s)?)))
            .collect();
        let wrote = if steps.is_empty() { false } else { self.count_steps(conn, &steps).await? };
        Ok(Settled { moved, wrote })
    }
}

/// The holder as the first two values of a settlement: owner and epoch.
fn holder_values(by: &Holder) -> [Value; 2] {
    let epoch = match by {
        Holder::Lease { .. } => 0,
        Holder::Exclusive { epoch, .. } => *epoch,
    };
    [Value::text(by.owner().as_str()), Value::Int(epoch)]
}

/// A statement that settles, with its values.
struct BatchStatement {
    part: Part,
    template: String,
    values: Vec<Value>,
}

/// Task of one statement of a settlement.
enum Part {
    /// Settles done events.
    Done,
    /// Records failed attempts.
    Note,
    /// Settles all other verdicts.
    Rest,
}

/// Whether a verdict is recorded as a failed attempt.
fn is_noted(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Again { counted: true, .. } | Verdict::Dead { .. })
}

/// Builds the statements of a settlement: one for done events, one for all others, and, where that
/// one cannot record failed attempts, one before it that does.
fn batches<DB: Dialect>(
    by: &Holder,
    completion: Completion,
    settlements: &[Settlement],
    which: Which,
) -> Vec<BatchStatement> {
    let (done, rest): (Vec<_>, Vec<_>) = settlements.iter().partition(|s| s.verdict == Verdict::Done);
    let mut batches = Vec::with_capacity(3);
    if !done.is_empty() {
        let mut values = Vec::from(holder_values(by));
        values.extend(batch_values::<DB>(&done, false));
        batches.push(BatchStatement {
            part: Part::Done,
            template: DB::settle_done(completion, by, which),
            values,
        });
    }
    if !rest.is_empty() {
        let mut values = Vec::from(holder_values(by));
        values.extend(batch_values::<DB>(&rest, true));
        let noting = rest.iter().any(|s| is_noted(&s.verdict)).then(|| DB::note_attempts(by, which));
        let template = match noting {
            Some(Noting::AtOnce(template)) => template,
            Some(Noting::First(template)) => {
                batches.push(BatchStatement { part: Part::Note, template, values: values.clone() });
                DB::settle_rest(by, which)
            }
            None => DB::settle_rest(by, which),
        };
        batches.push(BatchStatement { part: Part::Rest, template, values });
    }
    batches
}

/// A settlement as a row: status, counted, after, error. Without a status the event keeps its own;
/// with a time, it stays suspect.
fn verdict_row(verdict: &Verdict) -> (Option<i64>, i64, Option<i64>, Option<String>) {
    match verdict {
        Verdict::Done => (Some(1), 0, None, None),
        Verdict::Again { after, counted, error } => (
            Some(if *counted { 2 } else { 0 }),
            i64::from(*counted),
            Some(super::dialect::micros(*after)),
            error.as_deref().map(short_error),
        ),
        Verdict::Dead { counted, reason } => (Some(3), i64::from(*counted), None, Some(short_error(reason))),
        Verdict::Released => (None, 0, None, None),
        Verdict::ReleasedSuspect => (None, 0, Some(0), None),
    }
}

/// A batch of ids and claims, with the verdicts if wanted, as arrays or JSON as the database needs.
pub(super) fn batch_values<DB: Dialect>(settlements: &[&Settlement], with_verdict: bool) -> Vec<Value> {
    let rows = || settlements.iter().map(|s| (s, verdict_row(&s.verdict)));
    if DB::ARRAYS {
        let mut values = vec![
            Value::texts(settlements.iter().map(|s| s.id.as_str())),
            Value::ints(settlements.iter().map(|s| i64::from(s.claim))),
        ];
        if with_verdict {
            values.push(Value::Ints(rows().map(|(_, v)| v.0).collect()));
            values.push(Value::ints(rows().map(|(_, v)| v.1)));
            values.push(Value::Ints(rows().map(|(_, v)| v.2).collect()));
            values.push(Value::Texts(rows().map(|(_, v)| v.3).collect()));
        }
        values
    } else {
        let rows: Vec<_> = rows().map(|(s, v)| (s.id.as_str(), s.claim, v.0, v.1, v.2, v.3)).collect();
        vec![Value::Text(serde_json::to_string(&rows).ok())]
    }
}
