//! Joins in SQL.
//!
//! Locks are acquired in one order: the events, then their steps, then the joins by id. A step is
//! attached, counted or cancelled only by a transaction that holds the lock on its event's row (if
//! the event is in this database) and on its join's row (if the join is). So counters and steps
//! always agree, and a step that is attached while its event is being settled is seen by one of the
//! two transactions.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use super::dialect::{Database, NewRow, Value};
use super::follow_up::StoredFollowUp;
use super::store::SqlStore;
use crate::error::{Error, Result};
use crate::escape::Escaped;
use crate::event::{Event, EventId};
use crate::join::{
    CounterChange, FollowUp, Join, JoinError, JoinId, JoinStatus, NewJoin, REPORT_TIMEOUT, Report, Step,
};
use crate::store::{JoinCommand, JoinFilter, JoinMember, JoinOutcome, Store};

const JOIN: &str = "join_id, grouping_key, {int expected_steps}, {int attached_steps}, {int completed_steps}, \
    {int failed_steps}, {int status}, metadata, {int strict}, created_at, updated_at, on_complete, on_fail";

const START: &str = "INSERT INTO {joins} (join_id, grouping_key, expected_steps, metadata, created_at, updated_at) \
    VALUES ($1, $2, $3, $4, {now}, {now})";

const DECIDE: &str =
    "UPDATE {joins} SET strict = $2, on_complete = $3, on_fail = $4, updated_at = {now} WHERE join_id = $1";

/// Locks the events that become steps.
const STEPS: &str = "SELECT event_id, {int status} FROM {listed events event_id texts $1} \
    {where listed events event_id texts $1} ORDER BY event_id {lock listed}";
const MARK: &str =
    "UPDATE {listed events event_id texts $1} SET joined = 1 {where listed events event_id texts $1}";
const MARK_ONE: &str = "UPDATE {events} SET joined = 1 WHERE event_id = $1";

/// Finds the events that are already steps of the join. With locks, to see committed rows at any
/// isolation level. Searches by event ids only: MySQL would wait for each step of the join that it
/// scans, while the transactions that hold these steps wait for the join.
const ATTACHED: &str = "SELECT event_id, {int status}, home FROM {listed members event_id texts $2} \
    {where listed members event_id texts $2} AND join_id = $1 {lock listed}";

/// Read without a lock: a report is committed together with the row that it describes.
const MEMBER: &str = "SELECT home, {int status} FROM {members} WHERE join_id = $1 AND event_id = $2";

/// Steps inherit the outcome of their events.
const ATTACH: &str = "INSERT INTO {members} (join_id, event_id, home, status, created_at, updated_at) \
    SELECT $1, event_id, $2, CASE status WHEN 1 THEN 1 WHEN 3 THEN 2 ELSE 0 END, {now}, {now} \
    FROM {listed events event_id texts $3} {where listed events event_id texts $3}";
const ATTACH_ONE: &str = "INSERT INTO {members} (join_id, event_id, status, created_at, updated_at) \
    VALUES ($1, $2, $3, {now}, {now})";

/// Steps of joins among these events.
const MEMBERS: &str = "SELECT join_id, event_id, {int status}, home FROM {listed members event_id texts $1} \
    {where listed members event_id texts $1} {lock listed}";
const COMPLETE: &str = "UPDATE {listed members event_id texts $1} SET status = 1, updated_at = {now} \
    {where listed members event_id texts $1} AND status <> 1";
const FAIL: &str = "UPDATE {listed members event_id texts $1} SET status = 2, updated_at = {now} \
    {where listed members event_id texts $1} AND status = 0";
const REPORT: &str =
    "UPDATE {members} SET status = $3, home = '', updated_at = {now} WHERE join_id = $1 AND event_id = $2";

const CLOSED: &str = "SELECT join_id FROM {joins} WHERE status <> 0 AND updated_at < {earlier $1} \
    ORDER BY updated_at LIMIT ";
const PURGE_STEPS: &str =
    "DELETE {from listed members join_id texts $1} {where listed members join_id texts $1}";
const PURGE: &str = "DELETE {from listed joins join_id texts $1} {where listed joins join_id texts $1}";
/// Steps of joins in other databases that were settled long ago, except failed steps that may still
/// be replayed.
const AWAY: &str = "SELECT event_id FROM {members} m WHERE home <> '' AND status <> 0 AND updated_at < {earlier $1} \
    AND (status = 1 OR NOT EXISTS (SELECT 1 FROM {events} e WHERE e.event_id = m.event_id)) ORDER BY updated_at LIMIT ";
const PURGE_AWAY: &str = "DELETE {from listed members event_id texts $1} {where listed members event_id texts $1} \
    AND home <> '' AND status <> 0";

/// A join and its follow-ups.
struct Row {
    join: Join,
    strict: Option<bool>,
    on_complete: Option<String>,
    on_fail: Option<String>,
}

impl Row {
    /// Closes the join if it is complete and its follow-up is set. Returns the follow-up event.
    fn close(&mut self) -> Option<Event> {
        let status = self.join.closing(self.strict)?;
        self.join.status = status;
        let follows = match status {
            JoinStatus::Failed => &self.on_fail,
            _ => &self.on_complete,
        };
        let event = follows.as_deref().map(|text| StoredFollowUp::parse(text)?.into_event()).transpose();
        event.unwrap_or_else(|error| {
            // Refusing to close would keep the last step from ever being settled.
            tracing::error!(
                join = %Escaped(&self.join.id), %error, "cannot decode a join's follow-up; join closed without it"
            );
            None
        })
    }

    /// Whether the same follow-up was set before.
    fn has(&self, decision: &FollowUp) -> Result<bool> {
        let like = |text: &Option<String>, event: &Option<Event>| -> Result<bool> {
            Ok(match (text, event) {
                (None, None) => true,
                (Some(text), Some(event)) => StoredFollowUp::parse(text)?.is_like(&StoredFollowUp::of(event)),
                _ => false,
            })
        };
        Ok(self.strict == Some(decision.strict)
            && like(&self.on_complete, &decision.on_complete)?
            && like(&self.on_fail, &decision.on_fail)?)
    }
}

impl<DB: Database> SqlStore<DB> {
    /// Applies a command to a join in the transaction of this connection.
    pub(crate) async fn join_on(&self, conn: &mut DB::Connection, act: &JoinCommand) -> Result<JoinOutcome> {
        let acted = match act {
            JoinCommand::Start { id, join } => self.start(conn, id, join).await,
            JoinCommand::Attach { join, home, steps } if home.is_empty() || home == Store::name(self) => {
                self.attach(conn, join, steps).await
            }
            JoinCommand::Attach { join, home, steps } => self.attach_away(conn, join, home, steps).await,
            JoinCommand::Report { join, step, became } => self.report(conn, join, step, *became).await,
            JoinCommand::Wait { join, decision } => self.decide(conn, join, decision).await,
            JoinCommand::Cancel { join } => self.give_up(conn, join).await,
        };
        acted.map_err(|e| self.explain(e))
    }

    async fn start(&self, conn: &mut DB::Connection, id: &JoinId, join: &NewJoin) -> Result<JoinOutcome> {
        join.check()?;
        let values = vec![
            Value::text(id.as_str()),
            Value::Text(join.grouping_key.clone()),
            Value::Int(join.expected.into()),
            Value::Text(join.metadata.clone()),
        ];
        DB::run(conn, self.render(START), values).await?;
        let row = self.lock_join(conn, id).await?;
        Ok(JoinOutcome { join: Some(row.join), wrote: false })
    }

    async fn attach(&self, conn: &mut DB::Connection, id: &JoinId, steps: &[EventId]) -> Result<JoinOutcome> {
        let settled = self.lock_steps(conn, steps).await?;
        let mut row = self.lock_join(conn, id).await?;
        let new = self.not_attached(conn, id, &settled).await?;
        if new.is_empty() {
            return Ok(JoinOutcome { join: Some(row.join), wrote: false });
        }
        room(&row.join, new.len())?;
        let values = vec![Value::text(id.as_str()), Value::text(""), Value::texts(new.iter().copied())];
        DB::run(conn, self.render(ATTACH), values).await?;
        row.join.attached += new.len() as u32;
        for became in new.iter().filter_map(|step| settled[*step]) {
            row.join.count(CounterChange::of(None, became).unwrap_or_default());
        }
        self.write_joins(conn, vec![row]).await
    }

    /// Attaches steps to a join in another database, to which events report the outcomes of the
    /// steps.
    async fn attach_away(
        &self,
        conn: &mut DB::Connection,
        id: &JoinId,
        home: &str,
        steps: &[EventId],
    ) -> Result<JoinOutcome> {
        let settled = self.lock_steps(conn, steps).await?;
        let new = self.not_attached(conn, id, &settled).await?;
        if new.is_empty() {
            return Ok(JoinOutcome::default());
        }
        let values = vec![Value::text(id.as_str()), Value::text(home), Value::texts(new.iter().copied())];
        DB::run(conn, self.render(ATTACH), values).await?;
        let reports = new.iter().filter_map(|step| {
            let report = |became| report_of(home, id.as_str(), step, became);
            settled[*step].map(report)
        });
        let reports = reports.collect::<Result<Vec<_>>>()?;
        Ok(JoinOutcome { join: None, wrote: self.insert_all(conn, reports).await? })
    }

    async fn report(
        &self,
        conn: &mut DB::Connection,
        id: &JoinId,
        step: &EventId,
        became: Step,
    ) -> Result<JoinOutcome> {
        // Locks the event, if it is in this database.
        DB::run(conn, self.render(MARK_ONE), vec![Value::text(step.as_str())]).await?;
        let mut row = self.lock_join(conn, id).await?;
        let key = vec![Value::text(id.as_str()), Value::texts([step.as_str()])];
        let before = DB::fetch(conn, self.render(ATTACHED), key).await?;
        let values = vec![Value::text(id.as_str()), Value::text(step.as_str()), Value::Int(became.code())];
        let member = match before.first() {
            Some(row) => Some((Step::from_code(DB::int(row, 1)?.unwrap_or_default()), DB::text(row, 2)?)),
            None => None,
        };
        let change = match &member {
            Some((before, home)) if home.as_ref().is_none_or(String::is_empty) => {
                let change = CounterChange::of(*before, became);
                if change.is_some() {
                    DB::run(conn, self.render(REPORT), values).await?;
                }
                change
            }
            found => {
                room(&row.join, 1)?;
                // Attached here as a step of a join in another database: that database is this one,
                // under a second name.
                let statement = if found.is_some() { REPORT } else { ATTACH_ONE };
                DB::run(conn, self.render(statement), values).await?;
                row.join.attached += 1;
                CounterChange::of(None, became)
            }
        };
        let Some(change) = change else { return Ok(JoinOutcome { join: Some(row.join), wrote: false }) };
        row.join.count(change);
        self.write_joins(conn, vec![row]).await
    }

    async fn decide(
        &self,
        conn: &mut DB::Connection,
        id: &JoinId,
        decision: &FollowUp,
    ) -> Result<JoinOutcome> {
        let mut row = self.lock_join(conn, id).await?;
        if row.has(decision)? {
            return Ok(JoinOutcome { join: Some(row.join), wrote: false });
        }
        if row.join.status != JoinStatus::Pending {
            return Err(JoinError::Closed { id: id.clone(), status: row.join.status }.into());
        }
        if row.strict.is_some() {
            return Err(JoinError::Decided { id: id.clone() }.into());
        }
        row.strict = Some(decision.strict);
        row.join.awaited = true;
        row.on_complete = decision.on_complete.as_ref().map(StoredFollowUp::text).transpose()?;
        row.on_fail = decision.on_fail.as_ref().map(StoredFollowUp::text).transpose()?;
        let values = vec![
            Value::text(id.as_str()),
            Value::Int(decision.strict.into()),
            Value::Text(row.on_complete.clone()),
            Value::Text(row.on_fail.clone()),
        ];
        DB::run(conn, self.render(DECIDE), values).await?;
        if row.join.is_complete() {
            return self.write_joins(conn, vec![row]).await;
        }
        Ok(JoinOutcome { join: Some(row.join), wrote: false })
    }

    async fn give_up(&self, conn: &mut DB::Connection, id: &JoinId) -> Result<JoinOutcome> {
        let mut row = self.lock_join(conn, id).await?;
        if row.join.status != JoinStatus::Pending {
            return Ok(JoinOutcome { join: Some(row.join), wrote: false });
        }
        row.join.status = JoinStatus::Cancelled;
        self.write_joins(conn, vec![row]).await
    }

    /// Counts the outcomes of events whose rows this transaction has locked. Returns whether events
    /// were written.
    pub(super) async fn count_steps(
        &self,
        conn: &mut DB::Connection,
        became: &HashMap<&str, Step>,
    ) -> Result<bool> {
        let ids = |step: Step| {
            let sorted: BTreeSet<&str> =
                became.iter().filter(|(_, became)| **became == step).map(|(id, _)| *id).collect();
            Value::texts(sorted)
        };
        let all: BTreeSet<&str> = became.keys().copied().collect();
        let members = DB::fetch(conn, self.render(MEMBERS), vec![Value::texts(all)]).await?;
        let mut changes: BTreeMap<String, Vec<CounterChange>> = BTreeMap::new();
        let mut reports = Vec::new();
        for member in &members {
            let (Some(join), Some(step)) = (DB::text(member, 0)?, DB::text(member, 1)?) else { continue };
            let Some(now) = became.get(step.as_str()).copied() else { continue };
            let before = Step::from_code(DB::int(member, 2)?.unwrap_or_default());
            let Some(change) = CounterChange::of(before, now) else { continue };
            match DB::text(member, 3)?.filter(|home| !home.is_empty()) {
                None => changes.entry(join).or_default().push(change),
                Some(home) => reports.push(report_of(&home, &join, &step, now)?),
            }
        }
        if changes.is_empty() && reports.is_empty() {
            return Ok(false);
        }
        DB::run(conn, self.render(COMPLETE), vec![ids(Step::Completed)]).await?;
        DB::run(conn, self.render(FAIL), vec![ids(Step::Failed)]).await?;
        let mut rows = Vec::with_capacity(changes.len());
        if !changes.is_empty() {
            for mut row in self.lock_joins(conn, changes.keys().map(String::as_str)).await? {
                for change in changes.get(row.join.id.as_str()).into_iter().flatten() {
                    row.join.count(*change);
                }
                rows.push(row);
            }
        }
        let wrote = self.insert_all(conn, reports).await?;
        Ok(self.write_joins(conn, rows).await?.wrote | wrote)
    }

    /// Writes counters, and closes complete joins.
    async fn write_joins(&self, conn: &mut DB::Connection, mut rows: Vec<Row>) -> Result<JoinOutcome> {
        let mut follow_ups = Vec::new();
        for row in &mut rows {
            follow_ups.extend(row.close());
        }
        let numbers = |number: fn(&Join) -> i64| Value::ints(rows.iter().map(|row| number(&row.join)));
        let values = if DB::ARRAYS {
            vec![
                Value::texts(rows.iter().map(|row| row.join.id.as_str())),
                numbers(|join| join.attached.into()),
                numbers(|join| join.completed.into()),
                numbers(|join| join.failed.into()),
                numbers(|join| join.status as i64),
            ]
        } else {
            let batch: Vec<_> = rows
                .iter()
                .map(|Row { join, .. }| {
                    (join.id.as_str(), join.attached, join.completed, join.failed, join.status as i64)
                })
                .collect();
            vec![Value::Text(serde_json::to_string(&batch).ok())]
        };
        if !rows.is_empty() {
            DB::run(conn, self.render(DB::count_joins()), values).await?;
        }
        if !follow_ups.is_empty() {
            // A follow-up with an id chosen by the application may have been written before: that
            // must not keep a step from being settled.
            let ids: Vec<EventId> = follow_ups.iter().map(|event| event.id().clone()).collect();
            let there = self.kept(conn, &ids).await?;
            follow_ups.retain(|event| !there.contains(event.id().as_str()));
        }
        let wrote = self.insert_all(conn, follow_ups).await?;
        Ok(JoinOutcome { join: rows.pop().map(|row| row.join), wrote })
    }

    /// Writes events outside of the hot path, not leased. Returns whether there were any.
    async fn insert_all(&self, conn: &mut DB::Connection, events: Vec<Event>) -> Result<bool> {
        let rows: Vec<NewRow> = events.into_iter().map(|event| NewRow { event, leased: false }).collect();
        if !rows.is_empty() {
            self.write(conn, &rows, None, false).await?;
        }
        Ok(!rows.is_empty())
    }

    /// Locks events and marks them as steps. Returns the outcome of each.
    async fn lock_steps(
        &self,
        conn: &mut DB::Connection,
        steps: &[EventId],
    ) -> Result<BTreeMap<String, Option<Step>>> {
        let asked: BTreeSet<&str> = steps.iter().map(EventId::as_str).collect();
        let list = Value::texts(asked.iter().copied());
        let mut settled = BTreeMap::new();
        for row in DB::fetch(conn, self.render(STEPS), vec![list.clone()]).await? {
            let became = match DB::int(&row, 1)? {
                Some(1) => Some(Step::Completed),
                Some(3) => Some(Step::Failed),
                _ => None,
            };
            settled.extend(DB::text(&row, 0)?.map(|id| (id, became)));
        }
        if let Some(unknown) = asked.iter().find(|id| !settled.contains_key(**id)) {
            return Err(JoinError::UnknownStep { id: EventId::from(*unknown) }.into());
        }
        DB::run(conn, self.render(MARK), vec![list]).await?;
        Ok(settled)
    }

    /// The events that are not yet steps of the join.
    async fn not_attached<'a>(
        &self,
        conn: &mut DB::Connection,
        id: &JoinId,
        steps: &'a BTreeMap<String, Option<Step>>,
    ) -> Result<Vec<&'a str>> {
        let values = vec![Value::text(id.as_str()), Value::texts(steps.keys().map(String::as_str))];
        let rows = DB::fetch(conn, self.render(ATTACHED), values).await?;
        let attached = rows.iter().map(|row| DB::text(row, 0)).collect::<Result<HashSet<_>, _>>()?;
        let is_new = |step: &&'a String| !attached.contains(&Some((*step).clone()));
        Ok(steps.keys().filter(is_new).map(String::as_str).collect())
    }

    async fn lock_join(&self, conn: &mut DB::Connection, id: &JoinId) -> Result<Row> {
        let row = self.lock_joins(conn, [id.as_str()]).await?.pop();
        row.ok_or_else(|| JoinError::Unknown { id: id.clone() }.into())
    }

    /// Locks joins, in the order of their ids.
    async fn lock_joins<'a>(
        &self,
        conn: &mut DB::Connection,
        ids: impl IntoIterator<Item = &'a str>,
    ) -> Result<Vec<Row>> {
        let text = format!(
            "SELECT {JOIN} FROM {{listed joins join_id texts $1}} {{where listed joins join_id texts $1}} \
             ORDER BY join_id {{lock listed}}"
        );
        let rows = DB::fetch(conn, self.render(&text), vec![Value::texts(ids)]).await?;
        rows.iter().map(|row| self.join_row(row)).collect()
    }

    fn join_row(&self, row: &DB::Row) -> Result<Row> {
        let number = |column| -> Result<u32> {
            let number = DB::int(row, column)?.unwrap_or_default();
            u32::try_from(number)
                .map_err(|e| Error::store_by(format!("invalid step count {number} of a join"), e))
        };
        let id = JoinId::from(DB::text(row, 0)?.unwrap_or_default());
        let code = DB::int(row, 6)?.unwrap_or_default();
        let status = JoinStatus::from_code(code)
            .ok_or_else(|| Error::Store(format!("join {id} has the unknown status {code}").into()))?;
        let strict = DB::int(row, 8)?.map(|strict| strict != 0);
        Ok(Row {
            join: Join {
                id,
                grouping_key: DB::text(row, 1)?,
                expected: number(2)?,
                attached: number(3)?,
                completed: number(4)?,
                failed: number(5)?,
                status,
                metadata: DB::text(row, 7)?,
                awaited: strict.is_some(),
                created_at: DB::time(row, 9)?.unwrap_or_default(),
                updated_at: DB::time(row, 10)?.unwrap_or_default(),
            },
            strict,
            on_complete: DB::text(row, 11)?,
            on_fail: DB::text(row, 12)?,
        })
    }

    pub(super) async fn list_joins(&self, filter: &JoinFilter, limit: usize) -> Result<Vec<Join>> {
        let mut text = format!("SELECT {JOIN} FROM {{joins}} WHERE 1 = 1");
        let mut values = Vec::new();
        let mut add = |condition: &str, value: Value| {
            values.push(value);
            text.push_str(&format!(" AND {condition} ${}", values.len()));
        };
        if let Some(id) = &filter.id {
            add("join_id =", Value::text(id.as_str()));
        }
        if let Some(status) = filter.status {
            add("status =", Value::Int(status as i64));
        }
        if let Some(key) = &filter.grouping_key {
            add("grouping_key =", Value::text(key));
        }
        if let Some(after) = &filter.after {
            add("join_id >", Value::text(after.as_str()));
        }
        text.push_str(&format!(" ORDER BY join_id LIMIT {limit}"));
        let rows = self.fetch(&text, values).await?;
        rows.iter().map(|row| Ok(self.join_row(row)?.join)).collect()
    }

    pub(super) async fn list_steps(
        &self,
        join: &JoinId,
        after: Option<&EventId>,
        limit: usize,
    ) -> Result<Vec<(EventId, Option<Step>)>> {
        let text = format!(
            "SELECT event_id, {{int status}} FROM {{members}} WHERE join_id = $1 AND event_id > $2 \
             ORDER BY event_id LIMIT {limit}"
        );
        let after = after.map_or("", EventId::as_str);
        let rows = self.fetch(&text, vec![Value::text(join.as_str()), Value::text(after)]).await?;
        let step = |row: &DB::Row| -> Result<_> {
            let id = EventId::from(DB::text(row, 0)?.unwrap_or_default());
            Ok((id, Step::from_code(DB::int(row, 1)?.unwrap_or_default())))
        };
        rows.iter().map(step).collect()
    }

    pub(super) async fn find_member(&self, join: &JoinId, step: &EventId) -> Result<Option<JoinMember>> {
        let values = vec![Value::text(join.as_str()), Value::text(step.as_str())];
        let rows = self.fetch(MEMBER, values).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let home = DB::text(row, 0)?.unwrap_or_default();
        Ok(Some(JoinMember { home, status: Step::from_code(DB::int(row, 1)?.unwrap_or_default()) }))
    }

    /// Deletes one batch of joins that were closed long ago, with their steps. Returns how many
    /// joins.
    pub(super) async fn purge_closed(
        &self,
        conn: &mut DB::Connection,
        older_than: Duration,
        limit: usize,
    ) -> Result<u64> {
        let (steps_too, away) = (&[PURGE_STEPS, PURGE][..], &[PURGE_AWAY][..]);
        let joins = self.purge_listed(conn, CLOSED, steps_too, older_than, limit).await?;
        // A report is accepted only while the row of its step exists.
        self.purge_listed(conn, AWAY, away, older_than.max(REPORT_TIMEOUT), limit).await?;
        Ok(joins)
    }

    /// Selects ids, and deletes their rows. Returns how many rows the last statement deleted.
    async fn purge_listed(
        &self,
        conn: &mut DB::Connection,
        select: &str,
        deletes: &[&str],
        older_than: Duration,
        limit: usize,
    ) -> Result<u64> {
        let text = format!("{select}{limit} {{skip locked}}");
        let rows = DB::fetch(conn, self.render(&text), vec![Value::micros(older_than)]).await?;
        let ids = rows.iter().map(|row| DB::text(row, 0)).collect::<Result<Vec<_>, _>>()?;
        let mut purged = 0;
        for delete in deletes.iter().filter(|_| !ids.is_empty()) {
            purged = DB::run(conn, self.render(delete), vec![Value::Texts(ids.clone())]).await?;
        }
        Ok(purged)
    }
}

/// Checks that a join accepts this many more steps.
fn room(join: &Join, steps: usize) -> Result<(), JoinError> {
    if join.status != JoinStatus::Pending {
        return Err(JoinError::Closed { id: join.id.clone(), status: join.status });
    }
    if steps as u64 + u64::from(join.attached) > u64::from(join.expected) {
        return Err(JoinError::Full { id: join.id.clone(), expected: join.expected });
    }
    Ok(())
}

fn report_of(home: &str, join: &str, step: &str, became: Step) -> Result<Event> {
    Report { home: home.to_owned(), join: join.to_owned(), step: step.to_owned(), became }.event()
}
