//! PostgreSQL's statements for distributed databases that speak its protocol: CockroachDB and
//! YugabyteDB.
//!
//! The statements are those of PostgreSQL, on tables of their own (`migrations/distributed`). This
//! file has the parts that differ, and `docs/guide/distributed.md` says where each difference is
//! documented.
//!
//! | PostgreSQL | here | why |
//! | --- | --- | --- |
//! | group leases under a table lock | a lease on each row, `SKIP LOCKED` | CockroachDB has no `LOCK TABLE` |
//! | advisory lock on an ordering key | lock on the row of the key's slot | some versions have no advisory locks, or locks without effect |
//! | number of a keyed event from a sequence | drawn until it is greater than the last one of the slot | sequences hand out numbers in blocks |
//! | `NOTIFY` wakes a relay | the relay polls | missing, or off by default |
//! | positions of the log from a sequence | from one row, locked until commit | as above |
//! | planner settings | none | CockroachDB refuses to set them |
//! | several changes of one table in one statement | one statement each | CockroachDB refuses them |

use sqlx::postgres::{PgConnection, Postgres};

use super::dialect::{Dialect, Value};
use super::names::{Names, Statement, render};
use crate::error::{Error, Result};

/// The scripts that make the tables. Versions before the first that knew these databases have none.
pub(super) const MIGRATIONS: &[&str] =
    &["", "", "", "", "", "", "", "", "", "", include_str!("../../migrations/distributed/0011_schema.sql")];

/// Switches on the flag by which the table gives rows without a key the key of their aggregate.
pub(super) const BY_AGGREGATE: &str =
    "INSERT INTO {key_slots} (slot, last) VALUES (-1, 0) ON CONFLICT (slot) DO NOTHING";

/// The last number that the sequence has handed out to a session, and the size of the table by the
/// database's own estimate.
pub(super) const SIZE: &str = "SELECT (SELECT CASE WHEN q.is_called THEN q.last_value ELSE 0 END FROM {identity} q), \
    (SELECT CASE WHEN c.reltuples >= 0 THEN c.reltuples::bigint END FROM pg_class c WHERE c.oid = '{events}'::regclass) \
    FROM (SELECT $1::text AS schema, $2::text AS name) s";

/// Locks the slots of keys in one order. The trigger of the table locks them as well, but in the
/// order of the rows, in which two writers may wait for each other in a circle.
pub(super) fn lock_keys(keys: &str) -> String {
    format!(
        "SELECT count(*) >= 0 AS done FROM (SELECT s.slot FROM {{key_slots}} s WHERE s.slot IN (\
         SELECT (get_byte(decode(md5(k), 'hex'), 0) << 4) + (get_byte(decode(md5(k), 'hex'), 1) >> 4) \
         FROM unnest({keys}) k WHERE k IS NOT NULL) ORDER BY s.slot FOR UPDATE) l"
    )
}

/// Creates the table whose row excludes other migrations, and the row.
const MIGRATION_LOCK: &str = "SET LOCAL lock_timeout = 2000; \
    CREATE TABLE IF NOT EXISTS {migration_lock} (id integer PRIMARY KEY CHECK (id = 1)); \
    INSERT INTO {migration_lock} (id) VALUES (1) ON CONFLICT (id) DO NOTHING";
const LOCK_MIGRATIONS: &str = "SELECT id FROM {migration_lock} WHERE id = 1 FOR UPDATE";

/// Excludes other migrations until the end of the transaction. False: another one creates its
/// tables.
pub(super) async fn lock_migrations(conn: &mut PgConnection, names: &Names) -> Result<bool> {
    let text = |template| render(template, names, &Postgres::fragment);
    let locked = async {
        Postgres::script(conn, text(MIGRATION_LOCK)).await?;
        Postgres::script(conn, text(LOCK_MIGRATIONS)).await
    };
    match locked.await {
        Ok(_) => Ok(true),
        Err(error) if is_concurrent_creation(&error) => Ok(false),
        Err(error) => Err(Error::from(error)),
    }
}

/// Whether another transaction creates the same table: `IF NOT EXISTS` does not see the table
/// before that transaction commits. 40001 is how a serializable transaction says so.
fn is_concurrent_creation(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    matches!(code.as_deref(), Some("23505" | "42P07" | "40001"))
}

/// Rewrites a statement. Texts are compared by their bytes in CockroachDB, which has no collation
/// of that name.
pub(super) fn rewrite(statement: Statement, values: Vec<Value>) -> (Statement, Vec<Value>) {
    if !statement.text.contains(COLLATION) {
        return (statement, values);
    }
    let text = statement.text.replace(COLLATION, "");
    (Statement { text: text.into(), ..statement }, values)
}

const COLLATION: &str = " COLLATE \"C\"";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distributed_database_has_the_same_versions_as_postgresql() {
        assert_eq!(MIGRATIONS.len(), <Postgres as Dialect>::MIGRATIONS.len());
    }

    #[test]
    fn a_statement_names_no_collation() {
        let statement = Statement::numbered("SELECT a FROM t ORDER BY a COLLATE \"C\", b".to_owned());
        let (statement, _) = rewrite(statement, Vec::new());
        assert_eq!(&*statement.text, "SELECT a FROM t ORDER BY a, b");
    }
}
