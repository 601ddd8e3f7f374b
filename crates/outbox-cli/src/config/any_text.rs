//! A settings file may hold anything: no text makes reading it panic, and no mistake is told with a secret in it.
//!
//! `PROPTEST_CASES` says how many texts each test tries.

use proptest::prelude::*;

use super::{Config, Environment};

/// Stands for passwords and tokens.
const SECRET: &str = "s3cr3t-canary-of-some-length";

/// A file with a secret wherever there can be one.
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

/// What is wrong with a text, as it is shown.
fn told(text: &str) -> String {
    let environment = Environment::from_iter([("OUTBOX_DATABASE_URL_X", SECRET)]);
    match Config::parse(text, &environment, None) {
        Ok(config) => config.warnings.iter().map(|warning| warning.in_file("f") + "\n").collect(),
        Err(found) => found.iter().map(|mistake| mistake.in_file("f") + "\n").collect(),
    }
}

/// All ways to the values of a document.
fn ways(value: &toml::Value, way: &[String], all: &mut Vec<Vec<String>>) {
    if !way.is_empty() {
        all.push(way.to_vec());
    }
    let step = |name: String| [way, &[name]].concat();
    match value {
        toml::Value::Table(table) => {
            table.iter().for_each(|(name, value)| ways(value, &step(name.clone()), all));
        }
        toml::Value::Array(array) => {
            array.iter().enumerate().for_each(|(n, value)| ways(value, &step(n.to_string()), all));
        }
        _ => {}
    }
}

fn at<'a>(value: &'a mut toml::Value, way: &[String]) -> Option<&'a mut toml::Value> {
    way.iter().try_fold(value, |value, name| match value {
        toml::Value::Table(table) => table.get_mut(name),
        toml::Value::Array(array) => array.get_mut(name.parse::<usize>().ok()?),
        _ => None,
    })
}

#[test]
fn the_file_with_all_secrets_is_a_file_at_all() {
    assert!(!told(&full()).contains("expected"), "{}", told(&full()));
}

/// `database = "postgres://…"` where a table belongs, `secrets = "…"` for a list of one: mistakes that people make.
#[test]
fn a_secret_in_a_place_of_another_shape_is_not_shown() {
    let document: toml::Value = toml::from_str(&full()).unwrap();
    let mut all = Vec::new();
    ways(&document, &[], &mut all);
    let secret = || toml::Value::String(format!("nats://ada:{SECRET}@host"));
    let shapes: [toml::Value; 4] = [
        secret(),
        toml::Value::Array(vec![secret()]),
        toml::Value::Table([("url".to_owned(), secret())].into_iter().collect()),
        toml::Value::Array(vec![toml::Value::Array(vec![secret()])]),
    ];
    let mut shown = Vec::new();
    for way in &all {
        for shape in &shapes {
            let mut changed = document.clone();
            *at(&mut changed, way).unwrap() = shape.clone();
            let text = toml::to_string(&changed).unwrap();
            let said = told(&text);
            if said.contains(SECRET) {
                shown.push(format!("{}: {said}", way.join(".")));
            }
        }
    }
    // Where a number or a name belongs nobody puts a password, and there it helps to see what was written.
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
    shown.retain(|said| {
        let place = said.split(':').next().unwrap_or_default();
        !place.split('.').any(|name| harmless.contains(&name))
    });
    assert!(shown.is_empty(), "{}", shown.join(""));
}

/// One thing that happens to a text while it is edited.
#[derive(Clone, Debug)]
enum Slip {
    Drop(prop::sample::Index),
    Put(prop::sample::Index, char),
    DropLine(prop::sample::Index),
    RepeatLine(prop::sample::Index),
    SwapLines(prop::sample::Index, prop::sample::Index),
}

fn slip() -> impl Strategy<Value = Slip> {
    use prop::sample::Index;
    let letter = prop_oneof![
        prop::sample::select(vec![
            '"', '\'', '[', ']', '{', '}', '=', ',', '.', '#', '\n', '$', '\\', '-', '_', '0'
        ]),
        any::<char>(),
    ];
    prop_oneof![
        any::<Index>().prop_map(Slip::Drop),
        (any::<Index>(), letter).prop_map(|(at, letter)| Slip::Put(at, letter)),
        any::<Index>().prop_map(Slip::DropLine),
        any::<Index>().prop_map(Slip::RepeatLine),
        (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Slip::SwapLines(a, b)),
    ]
}

fn slipped(text: &str, slip: &Slip) -> String {
    if text.is_empty() {
        return String::new();
    }
    let mut letters: Vec<char> = text.chars().collect();
    let mut lines: Vec<&str> = text.lines().collect();
    match slip {
        Slip::Drop(at) => {
            letters.remove(at.index(letters.len()));
            return letters.into_iter().collect();
        }
        Slip::Put(at, letter) => {
            letters.insert(at.index(letters.len()), *letter);
            return letters.into_iter().collect();
        }
        Slip::DropLine(at) => {
            lines.remove(at.index(lines.len()));
        }
        Slip::RepeatLine(at) => lines.push(lines[at.index(lines.len())]),
        Slip::SwapLines(a, b) => {
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
        told(&text);
    }

    /// Secrets that are cut into by a slip are none any more: what is left of the others must not be shown.
    #[test]
    fn slips_of_the_pen_show_no_secret(slips in prop::collection::vec(slip(), 1..6)) {
        let text = slips.iter().fold(full(), |text, slip| slipped(&text, slip));
        let said = told(&text);
        prop_assert!(!said.contains(SECRET), "{}", said);
    }

    #[test]
    fn lengths_of_time_are_shown_as_they_can_be_written(milliseconds in 0..100 * 365 * 86_400_000_u64) {
        let age = crate::age::Age(std::time::Duration::from_millis(milliseconds));
        prop_assert_eq!(age.to_string().parse::<crate::age::Age>(), Ok(age));
    }

    #[test]
    fn no_text_makes_reading_a_time_a_rate_a_number_or_a_database_panic(text in prop_oneof![any::<String>(), "[0-9]{0,22}[a-z/]{0,3}"]) {
        let _ = text.parse::<crate::age::Age>();
        let _ = text.parse::<crate::age::Rate>();
        let _ = text.parse::<super::Count>();
        let _ = crate::age::moment(&text, chrono::Utc::now());
    }

    #[test]
    fn what_is_wrong_with_a_database_is_said_without_its_password(
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
