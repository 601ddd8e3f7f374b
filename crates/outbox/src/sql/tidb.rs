//! Rewrites MySQL's statements for TiDB, which lacks some of their syntax.
//!
//! A statement is written for MySQL, and rewritten here when it is sent to TiDB.
//! `docs/guide/tidb.md` lists where each difference is documented.
//!
//! | MySQL | TiDB | why |
//! | --- | --- | --- |
//! | `JSON_TABLE(?, …) s` | `(SELECT ? AS … UNION ALL …) s` | the function does not exist |
//! | `IN (SELECT j.v FROM JSON_TABLE(?, …) j)` | `IN (?, ?, …)` | the same, and an index can search a list |
//! | `FOR UPDATE SKIP LOCKED` | `FOR UPDATE`, one taker after another | it is parsed, but locks nothing |
//! | `LOCK IN SHARE MODE` | `FOR UPDATE` | it is rejected, or locks nothing |

use serde_json::Value as Json;

use super::dialect::Value;
use super::names::Statement;

/// The scripts that create the tables. Versions before the first one with TiDB support have none.
pub(super) const MIGRATIONS: &[&str] =
    &["", "", "", "", "", "", "", "", "", include_str!("../../migrations/tidb/0010_schema.sql")];

/// Deletes tags by their positions, for which TiDB's tables have an index.
pub(super) const PURGE_TAGS: &str = "DELETE FROM {log_tags} WHERE position {in ints $1}";

/// Locks the row that serializes takes.
pub(super) const TAKE_TURN: &str = "SELECT epoch FROM {leases} WHERE name = 'claim' FOR UPDATE";

/// Start of a list that is sent as JSON and read as a table.
const LIST: &str = "JSON_TABLE(?, '$[*]' COLUMNS (";

/// Rewrites a statement for TiDB. The text depends on the lengths of its lists, so it is not kept
/// prepared.
pub(super) fn rewrite(statement: Statement, values: Vec<Value>) -> (Statement, Vec<Value>) {
    let text = lock_plainly(&statement.text);
    if !text.contains(LIST) {
        return (Statement { text: text.into(), ..statement }, values);
    }
    let order = statement.order.clone().unwrap_or_default();
    let mut written =
        Rewriting { given: order.into_iter(), values: &values, text: String::new(), bound: Vec::new() };
    let mut rest = text.as_str();
    while let Some(at) = rest.find(LIST) {
        written.copy(&rest[..at]);
        let (columns, after) = Column::parse_all(&rest[at + LIST.len()..]);
        rest = written.list(&columns, after);
    }
    written.copy(rest);
    let Rewriting { text, bound, .. } = written;
    let order = Some((0..bound.len()).collect());
    (Statement { text: text.into(), order, named: false, ..statement }, bound)
}

fn lock_plainly(text: &str) -> String {
    let text = text.replace("FOR UPDATE SKIP LOCKED", "FOR UPDATE");
    text.replace("FOR UPDATE /*!80000 OF e */", "FOR UPDATE").replace("LOCK IN SHARE MODE", "FOR UPDATE")
}

/// The statement as far as it is rewritten.
struct Rewriting<'a> {
    /// Indexes of the values of the next placeholders.
    given: std::vec::IntoIter<usize>,
    values: &'a [Value],
    text: String,
    bound: Vec<Value>,
}

impl Rewriting<'_> {
    /// Copies a part, and the values of its placeholders.
    fn copy(&mut self, part: &str) {
        self.text.push_str(part);
        for _ in part.matches('?') {
            self.bound.extend(self.given.next().map(|n| self.values[n].clone()));
        }
    }

    /// Writes the list of the next placeholder. Returns the text after it.
    fn list<'t>(&mut self, columns: &[Column<'_>], after: &'t str) -> &'t str {
        let list = self.given.next().map(|n| self.values[n].clone());
        let rows = rows(list, columns);
        let names: Vec<String> = columns.iter().map(|column| format!("j.{}", column.name)).collect();
        let selected = format!("(SELECT {} FROM ", names.join(", "));
        match after.strip_prefix(" j)") {
            // `IN ()` is not valid SQL; an empty table has the same meaning.
            Some(after) if !rows.is_empty() && self.text.ends_with(&selected) => {
                self.text.truncate(self.text.len() - selected.len());
                self.members(columns.len(), rows);
                after
            }
            _ => {
                self.table(columns, rows);
                after
            }
        }
    }

    /// `(?, ?)`, or `((?, ?), (?, ?))` for lists of rows.
    fn members(&mut self, columns: usize, rows: Vec<Vec<Value>>) {
        let row = if columns == 1 { "?".to_owned() } else { format!("({})", vec!["?"; columns].join(", ")) };
        self.text.push_str(&format!("({})", vec![row; rows.len()].join(", ")));
        self.bound.extend(rows.into_iter().flatten());
    }

    /// `(SELECT CAST(? AS SIGNED) AS n UNION ALL SELECT CAST(? AS SIGNED))`.
    fn table(&mut self, columns: &[Column<'_>], rows: Vec<Vec<Value>>) {
        let row = |value: &str, names: bool| {
            let cells = columns.iter().map(|column| column.cell(value, names));
            format!("SELECT {}", cells.collect::<Vec<_>>().join(", "))
        };
        let table = match rows.len() {
            0 => format!("{} FROM DUAL WHERE FALSE", row("NULL", true)),
            several => {
                let mut selects = vec![row("?", true)];
                selects.resize(several, row("?", false));
                selects.join(" UNION ALL ")
            }
        };
        self.text.push_str(&format!("({table})"));
        self.bound.extend(rows.into_iter().flatten());
    }
}

/// A column of a list: `id varchar(36) CHARACTER SET … COLLATE … PATH '$[0]'`.
struct Column<'t> {
    name: &'t str,
    kind: &'t str,
    path: &'t str,
}

impl<'t> Column<'t> {
    /// Parses columns up to the parentheses that end them. Returns the text after them.
    fn parse_all(text: &'t str) -> (Vec<Self>, &'t str) {
        let (columns, after) = text.split_once("))").unwrap_or((text, ""));
        let parse = |column: &'t str| {
            let (name, rest) = column.trim().split_once(' ').unwrap_or((column, ""));
            let (kind, path) = rest.split_once(" PATH ").unwrap_or((rest, ""));
            Self { name, kind: kind.trim(), path: path.trim().trim_matches('\'') }
        };
        (columns.split(", ").map(parse).collect(), after)
    }

    /// Maximum length of a `varchar`, in characters.
    fn length(&self) -> Option<usize> {
        self.kind.strip_prefix("varchar(")?.split(')').next()?.parse().ok()
    }

    /// The value with its type, and its name if `named`. A text has the collation of the columns
    /// that it is compared with.
    fn cell(&self, value: &str, named: bool) -> String {
        let typed = match self.kind.split_once("COLLATE ") {
            Some((_, collation)) => {
                let length = self.length().map_or(String::new(), |length| format!("({length})"));
                format!("CAST({value} AS CHAR{length} CHARACTER SET utf8mb4) COLLATE {collation}")
            }
            None => format!("CAST({value} AS SIGNED)"),
        };
        if named { format!("{typed} AS {}", self.name) } else { typed }
    }

    /// The value at the path. As in MySQL, a text that does not fit is NULL: truncated, it could
    /// equal another value.
    fn value(&self, element: &Json) -> Value {
        let found = match self.path.trim_start_matches('$') {
            "" => Some(element),
            path => match path.strip_prefix('.') {
                Some(name) => element.get(name),
                None => path.trim_matches(['[', ']']).parse().ok().and_then(|n: usize| element.get(n)),
            },
        };
        match found {
            Some(Json::String(text)) => {
                let fits = self.length().is_none_or(|length| text.chars().count() <= length);
                Value::Text(fits.then(|| text.clone()))
            }
            Some(Json::Number(number)) => number.as_i64().map_or(Value::Text(None), Value::Int),
            Some(Json::Bool(flag)) => Value::Int(i64::from(*flag)),
            _ => Value::Text(None),
        }
    }
}

/// The rows of a list.
fn rows(list: Option<Value>, columns: &[Column<'_>]) -> Vec<Vec<Value>> {
    let json = match list {
        Some(Value::Text(json)) => json,
        Some(list) => list.into_json(),
        None => None,
    };
    let elements: Vec<Json> = json.and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default();
    elements.iter().map(|element| columns.iter().map(|column| column.value(element)).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::dialect::Dialect;

    fn rewritten(text: &str, values: Vec<Value>) -> (String, String) {
        let (statement, bound) = rewrite(Statement::positional(text), values);
        let places = statement.order.clone().unwrap();
        assert_eq!(statement.text.matches('?').count(), places.len(), "{}", statement.text);
        let bound: Vec<&Value> = places.iter().map(|n| &bound[*n]).collect();
        (statement.text.to_string(), format!("{bound:?}"))
    }

    const TEXT: &str = "varchar(5) CHARACTER SET utf8mb4 COLLATE x";

    #[test]
    fn a_list_is_a_table_of_its_rows() {
        let text = format!(
            "UPDATE JSON_TABLE($2, '$[*]' COLUMNS (id {TEXT} PATH '$[0]', n int PATH '$[1]')) s JOIN e ON e.id = s.id SET a = $1"
        );
        let list = Value::Text(Some(r#"[["a", 1], ["ß\"'?", null], ["toolong", 3]]"#.to_owned()));
        let (text, bound) = rewritten(&text, vec![Value::Int(7), list]);
        let cells = "CAST(? AS CHAR(5) CHARACTER SET utf8mb4) COLLATE x, CAST(? AS SIGNED)";
        let named = "CAST(? AS CHAR(5) CHARACTER SET utf8mb4) COLLATE x AS id, CAST(? AS SIGNED) AS n";
        let table = format!("(SELECT {named} UNION ALL SELECT {cells} UNION ALL SELECT {cells})");
        assert_eq!(text, format!("UPDATE {table} s JOIN e ON e.id = s.id SET a = ?"));
        let expected =
            r#"[Text(Some("a")), Int(1), Text(Some("ß\"'?")), Text(None), Text(None), Int(3), Int(7)]"#;
        assert_eq!(bound, expected);
    }

    #[test]
    fn being_in_a_list_is_being_one_of_its_values() {
        let text = "SELECT a WHERE b = $1 AND c IN (SELECT j.v FROM JSON_TABLE($2, '$[*]' COLUMNS (v bigint PATH '$')) j) AND d = $1";
        let (text, bound) = rewritten(text, vec![Value::Int(1), Value::ints([5, 6])]);
        assert_eq!(text, "SELECT a WHERE b = ? AND c IN (?, ?) AND d = ?");
        assert_eq!(bound, "[Int(1), Int(5), Int(6), Int(1)]");
        let rows = format!(
            "(a, b) IN (SELECT j.a, j.b FROM JSON_TABLE($1, '$[*]' COLUMNS (a {TEXT} PATH '$[0]', b {TEXT} PATH '$[1]')) j)"
        );
        let (text, _) = rewritten(&rows, vec![Value::Text(Some(r#"[["a","b"],["c","d"]]"#.to_owned()))]);
        assert_eq!(text, "(a, b) IN ((?, ?), (?, ?))");
    }

    #[test]
    fn an_empty_list_has_no_rows() {
        let text = "c NOT IN (SELECT j.v FROM JSON_TABLE($1, '$[*]' COLUMNS (v bigint PATH '$')) j)";
        let (text, bound) = rewritten(text, vec![Value::Ints(Vec::new())]);
        assert_eq!(
            text,
            "c NOT IN (SELECT j.v FROM (SELECT CAST(NULL AS SIGNED) AS v FROM DUAL WHERE FALSE) j)"
        );
        assert_eq!(bound, "[]");
    }

    #[test]
    fn names_lead_to_members_and_flags_are_numbers() {
        let text = "SELECT 1 FROM JSON_TABLE($1, '$[*]' COLUMNS (at_head int PATH '$.at_head', gone bigint PATH '$.gone')) s";
        let (_, bound) = rewritten(text, vec![Value::Text(Some(r#"[{"at_head": true}]"#.to_owned()))]);
        assert_eq!(bound, "[Int(1), Text(None)]");
    }

    #[test]
    fn locks_are_plain() {
        for text in ["FOR UPDATE SKIP LOCKED", "FOR UPDATE /*!80000 OF e */", "LOCK IN SHARE MODE"] {
            assert_eq!(rewritten(text, Vec::new()).0, "FOR UPDATE");
        }
    }

    #[test]
    fn tidb_has_the_same_versions_as_mysql() {
        assert_eq!(MIGRATIONS.len(), <sqlx::MySql as Dialect>::MIGRATIONS.len());
    }
}
