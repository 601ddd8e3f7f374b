//! Property tests of the settings file: no text makes the parser panic, and no message contains a
//! secret.
//!
//! `PROPTEST_CASES` sets the number of texts for each test.

use proptest::prelude::*;

use super::{Config, Environment};

/// Placeholder for passwords and tokens.
const SECRET: &str = "s3cr3t-canary-of-some-length";

/// A file with a secret wherever one is possible.
const FULL: &str = r#"mode = "single-node"
to = "hook"
[database]
url = "postgres://ada:SECRET@db/shop"
table = "outbox_event"
[http]
listen = "127.0.0.1:9090"
tokens = [{ name = "ops", role = "read", token = "SECRET" }]
[poller]
interval = "1s"
batch-size = 7
[publishers.hook.webhook]
url = "https://ada:SECRET@hooks.example.com/in?token=SECRET"
secrets = ["SECRET"]
headers = { authorization = "Bearer SECRET" }
[publishers.wire.nats]
url = "nats://ada:SECRET@nats:4222"
subject = "orders.{type}"
password = "SECRET"
[publishers.line.redis]
url = "redis://:SECRET@redis:6379"
stream = "orders"
password = "SECRET"
[publishers.post.mqtt]
url = "mqtt://ada:SECRET@mqtt:1883"
topic = "orders"
password = "SECRET"
[publishers.rabbit.amqp]
url = "amqp://ada:SECRET@rabbit:5672/%2f"
exchange = "orders"
[[routes]]
type = "order.*"
to = "hook"
[[topics]]
name = "orders"
to = ["wire"]
"#;

fn full() -> String {
    FULL.replace("SECRET", SECRET)
}

/// Messages about a text, as they are printed.
fn messages(text: &str) -> String {
    let environment = Environment::from_iter([("OUTBOX_DATABASE_URL_X", SECRET)]);
    match Config::parse(text, &environment, None) {
        Ok(config) => config.warnings.iter().map(|warning| warning.in_file("f") + "\n").collect(),
        Err(found) => found.iter().map(|mistake| mistake.in_file("f") + "\n").collect(),
    }
}

/// Collects the paths of all values of a document.
fn paths(value: &toml::Value, path: &[String], all: &mut Vec<Vec<String>>) {
    if !path.is_empty() {
        all.push(path.to_vec());
    }
    let step = |name: String| [path, &[name]].concat();
    match value {
        toml::Value::Table(table) => {
            table.iter().for_each(|(name, value)| paths(value, &step(name.clone()), all));
        }
        toml::Value::Array(array) => {
            array.iter().enumerate().for_each(|(n, value)| paths(value, &step(n.to_string()), all));
        }
        _ => {}
    }
}

fn at<'a>(value: &'a mut toml::Value, path: &[String]) -> Option<&'a mut toml::Value> {
    path.iter().try_fold(value, |value, name| match value {
        toml::Value::Table(table) => table.get_mut(name),
        toml::Value::Array(array) => array.get_mut(name.parse::<usize>().ok()?),
        _ => None,
    })
}

#[test]
fn the_file_with_all_secrets_can_be_parsed() {
    assert!(!messages(&full()).contains("expected"), "{}", messages(&full()));
}

/// Likely mistakes: `database = "postgres://…"` instead of a table, `secrets = "…"` instead of a
/// list.
#[test]
fn a_secret_in_a_value_of_the_wrong_type_is_not_shown() {
    let document: toml::Value = toml::from_str(&full()).unwrap();
    let mut all = Vec::new();
    paths(&document, &[], &mut all);
    let secret = || toml::Value::String(format!("nats://ada:{SECRET}@host"));
    let shapes: [toml::Value; 4] = [
        secret(),
        toml::Value::Array(vec![secret()]),
        toml::Value::Table([("url".to_owned(), secret())].into_iter().collect()),
        toml::Value::Array(vec![toml::Value::Array(vec![secret()])]),
    ];
    let mut shown = Vec::new();
    for path in &all {
        for shape in &shapes {
            let mut changed = document.clone();
            *at(&mut changed, path).unwrap() = shape.clone();
            let text = toml::to_string(&changed).unwrap();
            let output = messages(&text);
            if output.contains(SECRET) {
                shown.push(format!("{}: {output}", path.join(".")));
            }
        }
    }
    // A password is unlikely where a number or a name is expected, and showing the value helps
    // there.
    let harmless = [
        "mode",
        "to",
        "listen",
        "interval",
        "batch-size",
        "type",
        "name",
        "role",
        "subject",
        "stream",
        "topic",
        "exchange",
        "table",
    ];
    shown.retain(|line| {
        let path = line.split(':').next().unwrap_or_default();
        !path.split('.').any(|name| harmless.contains(&name))
    });
    assert!(shown.is_empty(), "{}", shown.join(""));
}

/// One accidental change of a text.
#[derive(Clone, Debug)]
enum Edit {
    Drop(prop::sample::Index),
    Put(prop::sample::Index, char),
    DropLine(prop::sample::Index),
    RepeatLine(prop::sample::Index),
    SwapLines(prop::sample::Index, prop::sample::Index),
}

fn edit() -> impl Strategy<Value = Edit> {
    use prop::sample::Index;
    let letter = prop_oneof![
        prop::sample::select(vec![
            '"', '\'', '[', ']', '{', '}', '=', ',', '.', '#', '\n', '$', '\\', '-', '_', '0'
        ]),
        any::<char>(),
    ];
    prop_oneof![
        any::<Index>().prop_map(Edit::Drop),
        (any::<Index>(), letter).prop_map(|(at, letter)| Edit::Put(at, letter)),
        any::<Index>().prop_map(Edit::DropLine),
        any::<Index>().prop_map(Edit::RepeatLine),
        (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Edit::SwapLines(a, b)),
    ]
}

fn edited(text: &str, edit: &Edit) -> String {
    if text.is_empty() {
        return String::new();
    }
    let mut letters: Vec<char> = text.chars().collect();
    let mut lines: Vec<&str> = text.lines().collect();
    match edit {
        Edit::Drop(at) => {
            letters.remove(at.index(letters.len()));
            return letters.into_iter().collect();
        }
        Edit::Put(at, letter) => {
            letters.insert(at.index(letters.len()), *letter);
            return letters.into_iter().collect();
        }
        Edit::DropLine(at) => {
            lines.remove(at.index(lines.len()));
        }
        Edit::RepeatLine(at) => lines.push(lines[at.index(lines.len())]),
        Edit::SwapLines(a, b) => {
            let count = lines.len();
            lines.swap(a.index(count), b.index(count));
        }
    }
    lines.join("\n") + "\n"
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_reading_panic(text in any::<String>()) {
        messages(&text);
    }

    /// An edit inside a secret makes it another text; the other secrets must not be shown.
    #[test]
    fn accidental_edits_show_no_secret(edits in prop::collection::vec(edit(), 1..6)) {
        let text = edits.iter().fold(full(), |text, edit| edited(&text, edit));
        let output = messages(&text);
        prop_assert!(!output.contains(SECRET), "{}", output);
    }

    #[test]
    fn a_formatted_duration_can_be_parsed(milliseconds in 0..100 * 365 * 86_400_000_u64) {
        let age = crate::time_args::Age(std::time::Duration::from_millis(milliseconds));
        prop_assert_eq!(age.to_string().parse::<crate::time_args::Age>(), Ok(age));
    }

    #[test]
    fn no_text_makes_reading_a_time_a_rate_a_number_or_a_database_panic(text in prop_oneof![any::<String>(), "[0-9]{0,22}[a-z/]{0,3}"]) {
        let _ = text.parse::<crate::time_args::Age>();
        let _ = text.parse::<crate::time_args::Rate>();
        let _ = text.parse::<super::Count>();
        let _ = crate::time_args::moment(&text, chrono::Utc::now());
    }

    #[test]
    fn errors_about_a_database_do_not_contain_its_password(
        scheme in prop_oneof![Just("postgres"), Just("mysql"), Just("sqlite"), Just("oracle"), Just(""), Just("abc")],
        between in prop_oneof![Just("://"), Just(":"), Just("//"), Just("")],
        host in prop_oneof!["[a-z:/@?#%\\[\\]]{0,8}", Just("db://x".to_owned())],
    ) {
        let url = format!("{scheme}{between}ada:{SECRET}@{host}");
        if let Err(error) = crate::database::DatabaseUrl::parse(&url) {
            prop_assert!(!format!("{error:?}").contains(SECRET), "{:?}", error);
        } else if !url.starts_with("sqlite:") {
            let shown = crate::database::DatabaseUrl::parse(&url).unwrap().to_string();
            prop_assert!(!shown.contains(SECRET), "{}", shown);
        }
    }
}
