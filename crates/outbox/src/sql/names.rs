//! Names of the tables and indexes, checked and quoted, and the templates that they are filled
//! into.

use std::sync::Arc;

use super::product::Product;
use crate::error::{Error, Result};

/// Maximum length of a name, so that with every suffix it stays within PostgreSQL's limit of 63
/// characters.
const MAX_NAME: usize = 48;

/// Checks that a name is a plain identifier. It is also quoted, in case one of the two is
/// forgotten.
fn identifier(name: &str) -> Result<&str> {
    let mut chars = name.chars();
    let starts_well = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    if starts_well && name.len() <= MAX_NAME && chars.all(|c| c.is_ascii_alphanumeric() || c == '_') {
        Ok(name)
    } else {
        Err(Error::Identifier { name: name.to_owned() })
    }
}

/// Names of the tables of one outbox.
#[derive(Clone, Debug)]
pub struct Names {
    pub(crate) schema: Option<String>,
    pub(crate) table: String,
    quote: char,
    /// Product of the server.
    pub(crate) product: Product,
}

impl Names {
    pub(crate) fn new(schema: Option<&str>, table: &str, quote: char) -> Result<Self> {
        Ok(Self {
            schema: schema.map(identifier).transpose()?.map(str::to_owned),
            table: identifier(table)?.to_owned(),
            quote,
            product: Product::default(),
        })
    }

    /// Sets the product of the server.
    pub(crate) fn on(self, product: Product) -> Self {
        Self { product, ..self }
    }

    fn quoted(&self, name: &str) -> String {
        let q = self.quote;
        format!("{q}{name}{q}")
    }

    /// A table with its schema. `suffix` is empty for the events themselves.
    fn table(&self, suffix: &str) -> String {
        self.in_schema(&format!("{}{suffix}", self.table))
    }

    fn in_schema(&self, name: &str) -> String {
        let name = self.quoted(name);
        match &self.schema {
            Some(schema) => format!("{}.{name}", self.quoted(schema)),
            None => name,
        }
    }

    /// The table of events, with its schema and quotes.
    #[cfg(feature = "postgres")]
    pub(crate) fn events(&self) -> String {
        self.table("")
    }

    /// Common prefix of the names of the log: the log of `outbox_event` is `outbox_log`.
    fn base(&self) -> &str {
        self.table.strip_suffix("_event").filter(|base| !base.is_empty()).unwrap_or(&self.table)
    }

    /// Name of the log, without schema and quotes.
    pub(crate) fn log(&self) -> String {
        format!("{}_log", self.base())
    }

    /// An object of the log, with its schema.
    fn of_log(&self, suffix: &str) -> String {
        self.in_schema(&format!("{}{suffix}", self.log()))
    }

    /// The replacement of `{slot}` in a template, if the slot is a name.
    pub(super) fn fill(&self, slot: &str) -> Option<String> {
        Some(match slot {
            "events" => self.table(""),
            "leases" => self.table("_lease"),
            "batches" => self.table("_batch"),
            "claim_lock" => self.table("_claim_lock"),
            "keys" => self.table("_key"),
            "identity" => self.table("_seq_seq"),
            "key_slots" => self.table("_key_slot"),
            "joins" => self.table("_join"),
            "members" => self.table("_join_member"),
            "inbox" => self.table("_inbox"),
            "nodes" => self.table("_node"),
            "attempts" => self.table("_attempt"),
            "audits" => self.table("_audit"),
            "call" => self.table("_call"),
            "order_trigger" => self.table("_order"),
            "order_key" => self.table("_order_key"),
            "by_aggregate" => self.table("_by_aggregate"),
            "migration_lock" => self.table("_migration_lock"),
            "version" => self.table("_schema"),
            "log" => self.of_log(""),
            "log_tags" => self.of_log("_tag"),
            "log_head" => self.of_log("_head"),
            "log_seq" => self.of_log("_seq"),
            "log_lock" => self.of_log("_lock"),
            "log_settled" => self.of_log("_settled"),
            "log_append" => self.of_log("_append"),
            "log_refuse" => self.of_log("_refuse"),
            "log_unreadable" => self.of_log("_unreadable"),
            "log_insert" => self.of_log("_insert"),
            "progress" => self.in_schema(&format!("{}_topic_progress", self.base())),
            _ => self.quoted(&format!("{}_{}", self.table, slot.strip_prefix("events_")?)),
        })
    }
}

/// Rows of a table whose column is in a list, from a slot: `listed events event_id texts $1`.
pub(crate) struct Listed<'a> {
    pub(crate) table: &'a str,
    pub(crate) column: &'a str,
    /// `texts` or `ints`.
    pub(crate) kind: &'a str,
    /// The placeholder of the list.
    pub(crate) list: &'a str,
}

impl<'a> Listed<'a> {
    /// Parses a slot with or without its first word.
    pub(crate) fn parse(slot: &'a str) -> Self {
        let mut words = slot.trim_start_matches("listed ").split(' ');
        let mut word = || words.next().unwrap_or_default();
        Self { table: word(), column: word(), kind: word(), list: word() }
    }
}

/// The word at index `n` of a slot.
pub(crate) fn nth(words: &str, n: usize) -> &str {
    words.split(' ').nth(n).unwrap_or_default()
}

/// Fills in a template: slots such as `{events}` by the names, all other slots by `fragment`.
pub(crate) fn render(template: &str, names: &Names, fragment: &dyn Fn(&str) -> String) -> String {
    let mut text = String::with_capacity(template.len() + 256);
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        let close = rest[open..].find('}').map_or(rest.len() - 1, |i| open + i);
        text.push_str(&rest[..open]);
        let slot = &rest[open + 1..close];
        match names.fill(slot) {
            Some(name) => text.push_str(&name),
            // JSON in a comment of a migration.
            None if !slot.starts_with(|c: char| c.is_ascii_lowercase()) => text.push_str(&rest[open..=close]),
            // A fragment may contain slots itself.
            None => text.push_str(&render(&fragment(slot), names, fragment)),
        }
        rest = &rest[close + 1..];
    }
    text.push_str(rest);
    text
}

/// A statement ready to run: its text, and which value goes to which placeholder.
#[derive(Clone, Debug)]
pub struct Statement {
    pub(crate) text: Arc<str>,
    /// Indexes of the values in the order of the placeholders, for databases that only know `?`.
    pub(crate) order: Option<Vec<usize>>,
    /// Whether the statement stays prepared on its connection, under a name.
    pub(crate) named: bool,
    /// Product that the statement may have to be rewritten for; `None` if every server of the
    /// protocol accepts it unchanged.
    #[cfg_attr(
        not(any(feature = "postgres", feature = "mysql")),
        allow(dead_code, reason = "SQLite is one product")
    )]
    pub(crate) product: Option<Product>,
}

impl Statement {
    /// Keeps placeholders as `$1`, `$2`, for PostgreSQL and SQLite.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn numbered(text: String) -> Self {
        Self { text: text.into(), order: None, named: true, product: None }
    }

    /// Converts placeholders to `?`, for MySQL.
    #[cfg(feature = "mysql")]
    pub(crate) fn positional(numbered: &str) -> Self {
        let mut text = String::with_capacity(numbered.len());
        let mut order = Vec::new();
        let mut rest = numbered;
        while let Some(at) = rest.find('$') {
            let digits = rest[at + 1..].bytes().take_while(u8::is_ascii_digit).count();
            let (before, after) = (&rest[..at], &rest[at + 1 + digits..]);
            text.push_str(before);
            match rest[at + 1..at + 1 + digits].parse::<usize>() {
                Ok(number) => {
                    text.push('?');
                    order.push(number - 1);
                }
                // A `$` of a JSON path.
                Err(_) => text.push('$'),
            }
            rest = after;
        }
        text.push_str(rest);
        Self { text: text.into(), order: Some(order), named: true, product: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_identifiers_are_names() {
        for good in ["outbox_event", "_x", "A1"] {
            assert!(Names::new(None, good, '"').is_ok(), "{good}");
        }
        let long = "x".repeat(49);
        for bad in ["", "1x", "a-b", "a b", "a\"b", "a;DROP TABLE x", "tablé", "a.b", long.as_str()] {
            assert!(matches!(Names::new(None, bad, '"'), Err(Error::Identifier { .. })), "{bad}");
            assert!(Names::new(Some(bad), "ok", '"').is_err(), "{bad}");
        }
    }

    #[test]
    fn a_template_gets_names_and_fragments() {
        let names = Names::new(Some("app"), "box", '"').unwrap();
        let text =
            render("SELECT {now} FROM {events} USING {events_due}, {leases}", &names, &|slot: &str| {
                assert_eq!(slot, "now");
                "now()".to_owned()
            });
        assert_eq!(text, r#"SELECT now() FROM "app"."box" USING "box_due", "app"."box_lease""#);
        let json = r#"VALUES ('{"order": 42}') -- {}"#;
        assert_eq!(render(json, &names, &|slot: &str| unreachable!("{slot}")), json);
    }

    #[test]
    fn the_log_is_named_after_the_events() {
        for (table, log) in [("outbox_event", "outbox_log"), ("t1", "t1_log"), ("_event", "_event_log")] {
            let names = Names::new(None, table, '"').unwrap();
            assert_eq!(names.fill("log").unwrap(), format!("\"{log}\""));
        }
        let longest = Names::new(None, &"x".repeat(MAX_NAME), '"').unwrap();
        let of_log =
            ["log_tags", "log_head", "log_seq", "log_lock", "log_settled", "log_append", "log_insert"];
        for slot in of_log.into_iter().chain(["order_key", "by_aggregate"]) {
            assert!(longest.fill(slot).unwrap().len() <= 63 + 2, "{slot}");
        }
        let names = Names::new(Some("app"), "outbox_event", '"').unwrap();
        assert_eq!(names.fill("progress").unwrap(), r#""app"."outbox_topic_progress""#);
    }

    #[cfg(feature = "mysql")]
    #[test]
    fn numbered_placeholders_become_positional() {
        let s = Statement::positional("a = $2 AND b = $1 AND c = $2 AND path '$[*]'");
        assert_eq!(&*s.text, "a = ? AND b = ? AND c = ? AND path '$[*]'");
        assert_eq!(s.order, Some(vec![1, 0, 1]));
    }
}
