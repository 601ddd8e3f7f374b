//! The log on PostgreSQL: advisory locks, one function for an append, and a query for transactions
//! that are still appending.

use std::collections::BTreeSet;

use sqlx::Row as _;
use sqlx::postgres::{PgConnection, PgRow, Postgres};

use super::rows::{self, stored};
use super::{Append, AppendOutcome, LogDialect, too_isolated};
use crate::error::{Error, Result};
use crate::log::{Item, LogObservation, Position, Tag, Watermark};
use crate::sql::dialect::{Dialect as _, Render, Value};
use crate::sql::names::Names;

const APPEND: &str = "SELECT outcome, place, positions FROM {log_append}($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, \
     $12, $13, {stored}, $14, $15, $16, $17, $18, $19)";

/// Reads the last drawn position first, then the holders of the lock that every append acquires
/// before it draws a position: the subquery refers to the value read from the sequence, so it runs
/// after that read. The other columns come from the statement's snapshot, which is older than both.
/// The pids of the server's own processes identify its run: after the crash of one backend all of
/// them are new, while the postmaster continues.
const LOOK: &str = "WITH drawn AS MATERIALIZED (\
         SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END AS last FROM {log_seq} s) \
     SELECT d.last, ARRAY(\
         SELECT DISTINCT k.virtualtransaction FROM pg_locks k \
         WHERE k.locktype = 'relation' AND k.relation = '{log}'::regclass AND k.mode = 'RowExclusiveLock' AND k.granted \
         AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND d.last >= 0), \
     pg_postmaster_start_time()::text || COALESCE((SELECT string_agg(a.pid::text, ' ' ORDER BY a.pid) \
         FROM pg_stat_get_activity(NULL) a WHERE a.datid IS NULL AND a.usesysid IS NULL), ''), \
     (SELECT max(r.position) FROM (\
         SELECT n.position, row_number() OVER (ORDER BY n.position) AS nth FROM (\
             SELECT l.position FROM {log} l WHERE l.position > $1 ORDER BY l.position LIMIT 1000) n) r \
         WHERE r.position = $1 + r.nth), \
     (SELECT max(l.position) FROM {log} l), \
     (SELECT q.seqcache FROM pg_sequence q WHERE q.seqrelid = '{log_seq}'::regclass) \
     FROM drawn d";

impl LogDialect for Postgres {
    const APPENDS_AT_ONCE: bool = true;
    const TO_DECIDE: Option<&'static str> = Some("SET TRANSACTION ISOLATION LEVEL READ COMMITTED");
    const HEAD: &'static str = "SELECT max(position) FROM {log}";
    const PURGE_TAGS: &'static str = "DELETE FROM {log_tags} t USING (\
             SELECT l.position, u.tag FROM {log} l CROSS JOIN unnest(l.tags) u(tag) WHERE l.position {in ints $1}) x \
         WHERE t.tag = x.tag AND t.position = x.position";
    // A subscription moves over all final positions. One that has not moved over a gap waits for a
    // transaction that may have drawn that position: a holder of the lock that every append
    // acquires, as in `LOOK`. A prepared transaction has no backend any more; the lock on its
    // transaction id identifies it.
    const WAITING_SUBSCRIPTIONS: Option<&'static str> = Some(
        "SELECT e.topic, e.publisher, {int o.pid}, o.since, o.gid, o.who, o.application \
         FROM {progress} e CROSS JOIN (\
             SELECT k.pid, COALESCE(a.xact_start, p.prepared) AS since, p.gid, COALESCE(a.usename, p.owner)::text AS who, \
                 NULLIF(a.application_name, '') AS application \
             FROM pg_locks k LEFT JOIN pg_stat_activity a ON a.pid = k.pid \
                 LEFT JOIN pg_locks x ON k.pid IS NULL AND x.pid IS NULL AND x.locktype = 'transactionid' \
                     AND x.mode = 'ExclusiveLock' AND x.virtualtransaction = k.virtualtransaction \
                 LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid \
             WHERE k.locktype = 'relation' AND k.relation = '{log}'::regclass AND k.mode = 'RowExclusiveLock' AND k.granted \
             AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
             ORDER BY since LIMIT 1) o \
         WHERE e.status <> 'PAUSED' AND e.last_position < (SELECT max(l.position) FROM {log} l) \
         AND NOT EXISTS (SELECT 1 FROM {log} l WHERE l.position = e.last_position + 1) \
         ORDER BY e.topic, e.publisher",
    );

    // On a distributed database positions are committed in order.
    fn waiting_subscriptions(names: &Names) -> Option<&'static str> {
        Self::WAITING_SUBSCRIPTIONS.filter(|_| !names.product.is_distributed())
    }

    async fn append(sql: &dyn Render, conn: &mut PgConnection, append: &Append<'_>) -> Result<AppendOutcome> {
        let rows = Self::fetch(conn, sql.render(APPEND), append_values(append)).await?;
        let row = rows.first().ok_or_else(|| Error::Store("the append returned no row".into()))?;
        let place = Position::new(row.try_get::<Option<i64>, _>(1)?.unwrap_or_default());
        Ok(match row.try_get(0)? {
            "new" => {
                let positions: Option<Vec<i64>> = row.try_get(2)?;
                AppendOutcome::New(positions.unwrap_or_default().into_iter().map(Position::new).collect())
            }
            "already" => AppendOutcome::Already,
            "conflict" => AppendOutcome::Conflict(place),
            "isolation" => AppendOutcome::Isolated,
            "beyond" => append.beyond(place).unwrap_or(AppendOutcome::Conflict(place)),
            other => {
                return Err(Error::Store(
                    format!("the append returned {other:?}: is the schema newer?").into(),
                ));
            }
        })
    }

    async fn settle(
        sql: &dyn Render,
        conn: &mut PgConnection,
        items: &[Item],
        to_stay: bool,
    ) -> Result<Position> {
        let statement = sql.render("SELECT {log_settled}($1), current_setting('transaction_isolation')");
        let names = items.iter().flat_map(alone).collect::<BTreeSet<_>>();
        let rows = Self::fetch(conn, statement, vec![texts(names)]).await?;
        let isolation = rows.first().map(|row| Self::text(row, 1)).transpose()?.flatten().unwrap_or_default();
        if to_stay && !matches!(&*isolation, "read committed" | "read uncommitted") {
            return Err(too_isolated(&isolation.to_uppercase()));
        }
        Ok(super::statements::position::<Self>(&rows)?)
    }

    async fn look(sql: &dyn Render, conn: &mut PgConnection, watermark: &mut Watermark) -> Result<()> {
        if sql.names().product.find_distributed(conn).await? {
            let end = super::statements::position::<Self>(
                &Self::fetch(conn, sql.render(Self::HEAD), Vec::new()).await?,
            )?;
            watermark.ends_at(end);
            watermark.reach(end);
            return Ok(());
        }
        let rows = Self::fetch(conn, sql.render(LOOK), vec![Value::Int(watermark.safe.get())]).await?;
        let row = rows.first().ok_or_else(|| Error::Store("the log's sequence returned no row".into()))?;
        let cache: Option<i64> = row.try_get(5)?;
        if cache.is_some_and(|cache| cache > 1) {
            let what =
                "the log's sequence has a CACHE, so that a lower position may be drawn after a higher one: ";
            return Err(Error::setting(format!(
                "{what}run ALTER SEQUENCE {} CACHE 1",
                sql.render("{log_seq}").text
            )));
        }
        let place =
            |column| row.try_get::<Option<i64>, _>(column).map(|n| Position::new(n.unwrap_or_default()));
        watermark.learn(LogObservation {
            drawn: place(0)?,
            holders: row.try_get::<Vec<String>, _>(1)?.into_iter().collect(),
            server: row.try_get(2)?,
            unbroken: place(3)?,
            newest: place(4)?,
        });
        Ok(())
    }

    stored!(tags, check_json: false);
}

fn tags(row: &PgRow) -> Result<Vec<Tag>, String> {
    let tags: Vec<String> = row.try_get(2).map_err(|e| e.to_string())?;
    Ok(tags.into_iter().map(Tag::from_stored).collect())
}

/// Arguments of the append function: the events column by column, the locks, the conditions.
fn append_values(append: &Append<'_>) -> Vec<Value> {
    let mut lists: Vec<Value> = empty_lists();
    for event in append.events {
        for (list, value) in lists.iter_mut().zip(rows::values(event, array)) {
            list.push(value);
        }
    }
    let alone: BTreeSet<String> = append.checks.iter().flat_map(|check| alone(check.item)).collect();
    let mut shared = BTreeSet::from(["e".to_owned()]);
    for event in append.events {
        shared.insert(format!("y{}", event.event_type()));
        shared.extend(event.tags().iter().map(|tag| format!("t{tag}")));
    }
    shared.retain(|name| !alone.contains(name));
    lists.extend([texts(shared), texts(alone)]);

    let checks = || append.checks.iter();
    lists.push(Value::ints(checks().map(|check| i64::from(check.once))));
    lists.push(Value::ints(checks().map(|check| check.after.get())));
    let tags = checks().map(|check| array(&check.item.tags.iter().map(Tag::as_str).collect::<Vec<_>>()));
    lists.push(texts(tags));
    let types = checks().map(|check| array(&check.item.types.iter().map(AsRef::as_ref).collect::<Vec<_>>()));
    lists.push(texts(types));
    lists
}

/// One empty list per value of an event.
fn empty_lists() -> Vec<Value> {
    (0..rows::VALUES)
        .map(|n| match n {
            10 => Value::Blobs(Vec::new()),
            12 => Value::Times(Vec::new()),
            _ => Value::Texts(Vec::new()),
        })
        .collect()
}

fn texts(texts: impl IntoIterator<Item = String>) -> Value {
    Value::Texts(texts.into_iter().map(Some).collect())
}

/// Names of the locks that an alternative needs exclusively, so that appends of matching events
/// wait: its first tag, or its types if it has no tags, or the whole log.
fn alone(item: &Item) -> Vec<String> {
    match (item.tags.first(), &item.types[..]) {
        (Some(tag), _) => vec![format!("t{tag}")],
        (None, []) => vec!["e".to_owned()],
        (None, types) => types.iter().map(|event_type| format!("y{event_type}")).collect(),
    }
}

/// A nested array as text, because the inner arrays differ in length.
fn array(texts: &[&str]) -> String {
    let mut array = "{".to_owned();
    for (n, text) in texts.iter().enumerate() {
        array.push_str(if n == 0 { "\"" } else { ",\"" });
        for character in text.chars() {
            if matches!(character, '"' | '\\') {
                array.push('\\');
            }
            array.push(character);
        }
        array.push('"');
    }
    array.push('}');
    array
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Query;

    #[test]
    fn texts_are_quoted_in_an_array() {
        assert_eq!(array(&[]), "{}");
        assert_eq!(array(&["a=b", r#"c="d\"#, "NULL", "{x,y}"]), r#"{"a=b","c=\"d\\","NULL","{x,y}"}"#);
    }

    #[test]
    fn an_alternative_locks_its_first_tag_or_its_types_or_everything() {
        let locks = |query: Query| query.items().unwrap().iter().flat_map(alone).collect::<Vec<_>>();
        assert_eq!(locks(Query::tag("w", 1).and_tag("r", "eu").types(["A"])), ["tw=1"]);
        assert_eq!(locks(Query::of_types(["A", "B"])), ["yA", "yB"]);
        assert_eq!(locks(Query::all()), ["e"]);
        assert_eq!(locks(Query::tag("w", 1).or(Query::of_types(["A"]))), ["tw=1", "yA"]);
    }
}
