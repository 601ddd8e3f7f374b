use std::time::Duration;

use proptest::prelude::*;

use super::file::{OTHER_NAMES, variable};
use super::*;
use crate::log::{Topic, TracingPublisher};
use crate::relay::{PurgeSettings, RelayBuilder};
use crate::retry::RetryPolicy;
use crate::store::{Completion, OnDead};

const SEC: Duration = Duration::from_secs(1);

/// A placeholder for passwords.
const SECRET: &str = "s3cr3t-canary";

fn settings(text: &str) -> Settings {
    Settings::from_toml(text).unwrap_or_else(|error| panic!("{text}\n{error}"))
}

fn mistakes(text: &str) -> Vec<String> {
    mistakes_in(text, &[])
}

fn mistakes_in(text: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let read = Settings::from_toml_and_env(text, variables.iter().copied());
    read.err().map(|error| error.mistakes().collect()).unwrap_or_default()
}

async fn relay(settings: &Settings) -> RelayBuilder<sqlx::Sqlite> {
    Outbox::sqlite(":memory:").await.unwrap().relay(settings)
}

/// A-72
#[test]
fn the_daemons_part_is_not_read() {
    let text = r#"
mode = "ordered"
[[databases]]
name = 5
[discovery]
nonsense = true
[fleet]
max-connections = 0
[http]
listen = "nowhere"
[publishers.x.no-such-transport]
[[routes]]
to = "nowhere"
[[topics]]
nonsense = 1
"#;
    assert_eq!(settings(text).mode(), Mode::Ordered);
    assert_eq!(settings("").mode(), Mode::MultiNode);
    assert_eq!(settings("").database_url(), None);
}

/// A-72
#[test]
fn a_mistake_in_the_part_of_the_library_is_reported_with_its_location() {
    for (text, expected) in [
        ("[poler]\n", "settings:1:2: there is no setting `poler`: did you mean `poller`?"),
        (
            "[poller]\nintervall = \"1s\"\n",
            "settings:2:1: there is no setting `intervall`: did you mean `interval`?",
        ),
        ("mode = \"many\"\n", "settings:1:8: there is no value `many`: use "),
        ("enabled = true\n", "settings:1:1: there is no setting `enabled`"),
        ("[database]\nurl = \"shop.db\"\n", "settings:2:7: it does not say which kind of database it is"),
        (
            "[database]\nurl = \"sqlite:x.db\"\ntable = \"a-b\"\n",
            "settings:2:7: \"a-b\" cannot be a table or schema name",
        ),
        ("[database]\nurl = \"sqlite:x.db\"\ntable = \"\"\n", "settings:2:7: \"\" cannot be a table"),
        ("[database]\nname = \"\"\n", "settings:2:8: a name must have 1 to 64 characters"),
        ("[database\n", "settings:1:10: "),
        (
            "[database]\nurl = \"${NO_SUCH_NAME}\"\n",
            "settings:2:7: the environment variable NO_SUCH_NAME is not set",
        ),
        ("[database]\nurl = \"${A=B}\"\n", "settings:2:7: invalid name of an environment variable"),
    ] {
        let found = mistakes(text);
        assert!(found.len() == 1 && found[0].starts_with(expected), "{text}{found:?}");
    }
    let error = Settings::from_file("/no/such/file.toml").unwrap_err();
    assert!(error.to_string().starts_with("/no/such/file.toml: cannot be read: "), "{error}");
}

/// Whichever name a setting has, and wherever it is given.
#[test]
fn conflicting_settings_are_reported_where_they_are_given() {
    let expected = "`base-delay` (2m) is more than `max-delay` (1m)";
    for text in [
        "[retry]\nbase-delay = \"2m\"\nmax-delay = \"1m\"\n",
        "[retry]\nbase_delay = \"2m\"\nmax_delay = \"1m\"\n",
        "[retry]\nbase-delay-ms = 120000\nmax-delay-ms = 60000\n",
    ] {
        let found = mistakes(text);
        assert!(
            found.len() == 1 && found[0].starts_with("settings:2:") && found[0].ends_with(expected),
            "{found:?}"
        );
    }
    let found = mistakes_in("[retry]\nmax-delay = \"1m\"\n", &[("OUTBOX_RETRY_BASE_DELAY_MS", "120000")]);
    assert_eq!(found, [format!("OUTBOX_RETRY_BASE_DELAY_MS: {expected}")]);
}

#[test]
fn invalid_values_are_reported_in_the_file_and_in_the_environment() {
    let huge = "99999999999999999999999999";
    for (group, setting, values) in [
        (
            "dispatcher",
            "workers",
            vec!["0", "-1", "1000001", "9223372036854775807", huge, "1.5", "nan", "true", "\"4\"", "\"\""],
        ),
        ("dispatcher", "worker-count", vec!["0", "-1", "1000001", huge, "\"4\""]),
        ("dispatcher", "queue-bytes", vec!["0", "1073741825"]),
        (
            "poller",
            "interval",
            vec!["5", "\"\"", "\"0s\"", "\"-5s\"", "\"366d\"", "\"18446744073709551615w\"", "\"5\"", "true"],
        ),
        (
            "poller",
            "interval-ms",
            vec!["0", "-1", "31536000001", "9223372036854775807", huge, "1.5", "\"5s\""],
        ),
        ("retry", "base-delay-ms", vec!["-1", "9223372036854775807"]),
        ("purge", "interval-seconds", vec!["0", "-1", "9223372036854775807"]),
        (
            "backoff",
            "multiplier",
            vec!["nan", "inf", "-inf", "-nan", "0", "0.5", "-2", "1001", "1e308", "\"2\"", "true"],
        ),
        ("backoff", "threshold", vec!["0", "-1", "4294967296"]),
        ("backoff", "max-seconds", vec!["0", "-1", "31536001", "9223372036854775807"]),
        ("backoff", "enabled", vec!["1", "\"yes\"", "\"\""]),
        ("claim-locking", "lease", vec!["\"999ms\"", "\"\""]),
        ("claim-locking", "enabled", vec!["0", "\"on\""]),
        ("log", "batch-size", vec!["0", "100001"]),
        ("metrics", "prefix", vec!["\"\"", "\"a b\""]),
    ] {
        for value in values {
            let text = format!("[{group}]\n{setting} = {value}\n");
            let found = mistakes(&text);
            assert!(found.len() == 1 && found[0].starts_with("settings:2:"), "{text}{found:?}");
            // A number in quotes is a number in the environment.
            let written = value.trim_matches('"');
            if !matches!(value, "\"4\"" | "\"2\"") {
                let name = variable(group, setting);
                let found = mistakes_in("", &[(&name, written)]);
                assert!(
                    found.len() == 1 && found[0].starts_with(&format!("{name}: ")),
                    "{name}={written} {found:?}"
                );
            }
        }
    }
}

/// A-72
#[test]
fn other_names_are_the_same_settings_in_file_and_environment() {
    for other in OTHER_NAMES.iter().filter(|other| other.group != "topics") {
        let (theirs, ours) = match other.name.rsplit('-').next().unwrap() {
            "ms" => ("7000", "\"7s\""),
            "seconds" => ("7", "\"7s\""),
            _ => ("7", "7"),
        };
        let header = |group: &str| if group.is_empty() { String::new() } else { format!("[{group}]\n") };
        let by_theirs = format!("{}{} = {theirs}\n", header(other.group), other.name);
        let by_ours = format!("[{}]\n{} = {ours}\n", other.of_group, other.setting);
        let shown = |settings: &Settings| format!("{:?}", settings.groups);
        let expected = shown(&settings(&by_ours));
        assert_ne!(expected, shown(&settings("")));
        assert_eq!(shown(&settings(&by_theirs)), expected, "{by_theirs}");
        for name in [variable(other.group, other.name), variable(other.of_group, other.setting)] {
            let written =
                if name == variable(other.group, other.name) { theirs } else { ours.trim_matches('"') };
            let read = Settings::from_toml_and_env("", [(&name, written)]).unwrap();
            assert_eq!(shown(&read), expected, "{name}={written}");
        }
        // Both in one file: the same value is accepted, different values are a mistake.
        let both = |ours: &str| match other.is_at_the_top() {
            true => format!("{by_theirs}[{}]\n{} = {ours}\n", other.of_group, other.setting),
            false => format!("{by_theirs}{} = {ours}\n", other.setting),
        };
        assert_eq!(shown(&settings(&both(ours))), expected);
        let found = mistakes(&both(&ours.replace('7', "8")));
        let mistake = format!(
            "`{}` is another name of `{}`, which has another value: give one",
            other.name, other.setting
        );
        assert!(found.len() == 1 && found[0].ends_with(&mistake), "{found:?}");
        // The environment overrides the file, whatever the name.
        let own = variable(other.of_group, other.setting);
        let read =
            Settings::from_toml_and_env(&by_theirs.replace('7', "9"), [(&own, ours.trim_matches('"'))]);
        assert_eq!(shown(&read.unwrap()), expected, "{own}");
        // Both in the environment.
        let alias = variable(other.group, other.name);
        let eight = ours.trim_matches('"').replace('7', "8");
        let found = mistakes_in("", &[(&own, &eight), (&alias, theirs)]);
        assert_eq!(found, [format!("{alias}: another name of {own}, which has another value: set one")]);
    }
}

#[test]
fn a_hyphen_and_an_underscore_with_different_values_are_a_mistake() {
    assert_eq!(
        mistakes("[poller]\nbatch-size = 5\nbatch_size = 6\n"),
        ["settings:3:1: `batch_size` is another name of `batch-size`, which has another value: give one"]
    );
    assert!(mistakes("[poller]\nbatch_size = 5\nbatch-size = 5\n").is_empty());
    assert_eq!(
        mistakes("[claim_locking]\nlease = \"5s\"\n[claim-locking]\nlease = \"6s\"\n"),
        [
            "settings:1:2: `claim_locking` is another name of `claim-locking`, which has another value: give one"
        ]
    );
}

#[cfg(unix)]
#[test]
fn a_variable_that_is_not_unicode_is_reported_and_not_shown() {
    use std::ffi::{OsStr, OsString};
    use std::os::unix::ffi::OsStrExt as _;

    let value = |text: &[u8]| OsStr::from_bytes(text).to_owned();
    let secret = [SECRET.as_bytes(), b"\xff"].concat();
    for name in
        ["OUTBOX_POLLER_INTERVAL", "OUTBOX_DATABASE_URL", "OUTBOX_DISPATCHER_WORKER_COUNT", "DATABASE_URL"]
    {
        let error = Settings::from_toml_and_env("", [(name, value(&secret))]).unwrap_err();
        assert_eq!(error.to_string(), format!("{name}: its value is not UTF-8"));
    }
    // The name of no setting.
    let others = [(value(b"OUTBOX_\xff"), value(b"1")), (OsString::from("PATH"), value(b"\xff"))];
    assert!(Settings::from_toml_and_env("", others).is_ok());
}

#[test]
fn a_secret_is_never_shown() {
    let url = format!("postgres://ada:{SECRET}@db/shop");
    let good = settings(&format!("[database]\nurl = \"{url}\"\ndirect-url = \"{url}\"\n"));
    assert_eq!(good.database_url(), Some(url.as_str()));
    assert!(!format!("{good:?}").contains(SECRET), "{good:?}");
    for url in [
        format!("oracle://ada:{SECRET}@db/shop"),
        format!("ada:{SECRET}@db"),
        format!("postgres:{SECRET}@db"),
        SECRET.to_owned(),
    ] {
        for variable in ["OUTBOX_DATABASE_URL", "OUTBOX_DATABASE_DIRECT_URL", "DATABASE_URL"] {
            let found = mistakes_in("", &[(variable, &url)]);
            assert!(found.len() == 1 && !found[0].contains(SECRET), "{variable} {found:?}");
            assert!(found[0].starts_with(&format!("{variable}: it ")), "{found:?}");
        }
    }
    // A password of digits, and a text in place of a table.
    for text in
        ["[database]\nurl = 271828\n", "database = \"x://ada:271828@db\"\n", "[database]\nurl = [271828]\n"]
    {
        let found = mistakes(text);
        assert!(found.len() == 1 && !found[0].contains("271828"), "{found:?}");
    }
}

#[test]
fn the_database_is_the_one_of_the_settings_or_else_database_url() {
    let given = |text: &str, variables: &[(&str, &str)]| {
        let read = Settings::from_toml_and_env(text, variables.iter().copied()).unwrap();
        read.database_url().map(str::to_owned)
    };
    let (file, elsewhere) =
        ("[database]\nurl = \"sqlite:file.db\"\n", ("DATABASE_URL", "sqlite:elsewhere.db"));
    assert_eq!(given("", &[]), None);
    assert_eq!(given("", &[elsewhere]).as_deref(), Some("sqlite:elsewhere.db"));
    assert_eq!(given(file, &[elsewhere]).as_deref(), Some("sqlite:file.db"));
    let own = ("OUTBOX_DATABASE_URL", "sqlite:a$b.db");
    assert_eq!(given(file, &[elsewhere, own]).as_deref(), Some("sqlite:a$b.db"), "word for word");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("url");
    std::fs::write(&path, "sqlite:secret.db\n").unwrap();
    let named = format!("@{}", path.display());
    assert_eq!(given("", &[("DATABASE_URL", &named)]).as_deref(), Some("sqlite:secret.db"));
    // A text of digits is a text where a text is expected.
    let digits = [("OUTBOX_CLAIM_LOCKING_OWNER_ID", "42"), ("OUTBOX_DATABASE_NAME", "7")];
    assert!(Settings::from_toml_and_env("", digits).is_ok());
}

#[tokio::test]
async fn a_database_of_another_kind_or_none_is_an_error() {
    let wrong = |url: &str| settings(&format!("[database]\nurl = \"{url}\"\n"));
    let error = settings("").sqlite().await.unwrap_err();
    assert!(error.to_string().contains("no database: write `url` under `[database]`"), "{error}");
    let error = wrong(&format!("mysql://ada:{SECRET}@db/shop")).sqlite().await.unwrap_err();
    assert!(error.to_string().contains("it names MySql, but Sqlite was requested"), "{error}");
    assert!(!error.to_string().contains(SECRET), "{error}");
    #[cfg(feature = "postgres")]
    assert!(
        wrong("sqlite:x.db").postgres().await.unwrap_err().to_string().contains("Postgres was requested")
    );
    #[cfg(feature = "mysql")]
    assert!(wrong("sqlite:x.db").mysql().await.unwrap_err().to_string().contains("MySql was requested"));
}

/// A-72
#[test]
fn leases_cannot_be_switched_off_in_a_mode_that_needs_them() {
    for (mode, needs) in [
        ("multi_node", true),
        ("ordered", true),
        ("single-node", false),
        ("writer-only", false),
        ("log", false),
    ] {
        let text = |enabled: bool| format!("mode = \"{mode}\"\n[claim-locking]\nenabled = {enabled}\n");
        assert!(mistakes(&text(true)).is_empty(), "{mode}");
        let found = mistakes(&text(false));
        assert_eq!(found.len(), usize::from(needs), "{mode} {found:?}");
    }
    let found = mistakes_in("", &[("OUTBOX_CLAIM_LOCKING_ENABLED", "false")]);
    assert!(
        found[0].starts_with("OUTBOX_CLAIM_LOCKING_ENABLED: `mode = \"multi-node\"` needs leases"),
        "{found:?}"
    );
}

/// Undelivered events are deleted only in mode writer-only and only by an explicit setting, and
/// never immediately.
#[tokio::test]
async fn undelivered_events_are_deleted_only_by_an_explicit_setting() {
    let by_age = |retention: u32| PurgeSettings::default().retention(retention * SEC).delete_undelivered();
    let day = 86_400;
    for (text, purges) in [
        ("mode = \"writer-only\"", Some(PurgeSettings::default())),
        ("mode = \"writer-only\"\n[purge]\nenabled = false\ndelete-undelivered = true", None),
        (
            "mode = \"writer-only\"\n[purge]\nretention = \"0s\"",
            Some(PurgeSettings::default().retention(Duration::ZERO)),
        ),
        ("mode = \"writer-only\"\n[purge]\ndelete-undelivered = false", Some(PurgeSettings::default())),
        ("mode = \"WRITER_ONLY\"\n[purge]\ndelete_undelivered = true", Some(by_age(7 * day))),
        ("mode = \"writer-only\"\n[purge]\nretention = \"1m\"\ndelete-undelivered = true", Some(by_age(60))),
        ("mode = \"log\"", None),
        ("mode = \"multi-node\"", Some(PurgeSettings::default())),
    ] {
        assert_eq!(relay(&settings(text)).await.settings.purge, purges, "{text}");
    }
    for mode in ["single-node", "multi-node", "ordered", "log"] {
        let found = mistakes(&format!("mode = \"{mode}\"\n[purge]\ndelete-undelivered = true\n"));
        let expected = format!(
            "for `mode = \"writer-only\"` alone: `{mode}` would delete events before it delivers them"
        );
        assert_eq!(found, [format!("settings:3:22: {expected}")]);
    }
    let found = mistakes("mode = \"writer-only\"\n[purge]\nretention = \"59s\"\ndelete-undelivered = true\n");
    assert!(found.len() == 1 && found[0].contains("too short for deleting undelivered events"), "{found:?}");
}

/// Every setting of a relay, with a value that is not its default.
#[tokio::test]
async fn every_setting_reaches_the_relay() {
    let text = r#"
mode = "ordered"
completion = "delete"
on-dead = "skip"
unrouted = "dead"
[database]
url = "sqlite::memory:"
[dispatcher]
workers = 2
queue-capacity = 3
hot-queue-capacity = 4
queue-bytes = 5000
handler-timeout = "6s"
drain-timeout = "7s"
settle-linger = "8ms"
[poller]
interval = "9s"
batch-size = 10
skip-recent = "11s"
[claim-locking]
lease = "12s"
presence = "13s"
owner-id = "me"
[retry]
max-attempts = 3
base-delay = "2s"
jitter = false
[purge]
retention = "14s"
interval = "15s"
batch-size = 16
dead-retention = "17s"
inbox-retention = "18s"
attempts-retention = "19s"
log-retention = "20s"
audit-retention = "21s"
[log]
lease = "22s"
watch = "23s"
batch-size = 24
interval = "25s"
timeout = "26s"
[backoff]
threshold = 27
multiplier = 2.8
max = "29s"
[metrics]
prefix = "shop"
"#;
    let builder = relay(&settings(text)).await;
    let relay = &builder.settings;
    assert_eq!(
        (relay.mode, relay.completion, relay.on_dead),
        (Mode::Ordered, Completion::Delete, OnDead::Skip)
    );
    assert_eq!(builder.routes.unrouted, crate::Unrouted::Dead);
    assert_eq!((relay.workers, relay.cold_capacity, relay.hot_capacity, relay.batch), (2, 3, 4, 10));
    assert!(format!("{:?}", relay.bytes).contains("5000"), "{:?}", relay.bytes);
    assert_eq!((relay.handler_timeout, relay.drain, relay.linger), (6 * SEC, 7 * SEC, SEC / 125));
    assert_eq!((relay.poll_interval, relay.skip_recent), (9 * SEC, 11 * SEC));
    assert_eq!((relay.lease, relay.presence, relay.node.as_str()), (12 * SEC, 13 * SEC, "me"));
    assert_eq!(
        (relay.subscription_lease, relay.log_watch, &*relay.metrics_prefix),
        (22 * SEC, 23 * SEC, "shop")
    );
    let purge =
        PurgeSettings::default().retention(14 * SEC).every(15 * SEC).batch(16).dead_retention(17 * SEC);
    let purge = purge.inbox_retention(18 * SEC).attempts_retention(19 * SEC);
    assert_eq!(relay.purge, Some(purge.log_retention(20 * SEC).audit_retention(21 * SEC)));
    let delays = |policy: &dyn RetryPolicy| (1..=3).map(|n| policy.delay(n, 0.3)).collect::<Vec<_>>();
    let expected = [Some(2 * SEC), Some(4 * SEC), None];
    assert_eq!(delays(relay.retry.as_deref().unwrap()), expected);
    assert_eq!(delays(relay.publish_retry.as_deref().unwrap()), expected);

    let subscription = Topic::new("t").to(TracingPublisher::new());
    let pace = subscription.clone().or(&relay.subscription_defaults).pace();
    assert_eq!((pace.batch, pace.interval, pace.timeout), (24, 25 * SEC, 26 * SEC));
    assert_eq!((pace.idle_after, pace.idle_multiplier, pace.idle_max), (27, 2.8, 29 * SEC));
    let own = subscription.batch(7).interval(SEC).or(&relay.subscription_defaults).pace();
    assert_eq!((own.batch, own.interval, own.timeout), (7, SEC, 26 * SEC), "its own go before");
}

/// The maximum delay is not set: handlers and publishers keep their own.
#[tokio::test]
async fn a_retry_setting_leaves_the_others_unchanged_for_handlers_and_publishers() {
    let none = relay(&settings("")).await;
    assert!(none.settings.retry.is_none() && none.settings.publish_retry.is_none());
    let builder = relay(&settings("[retry]\nbase-delay = \"2m\"\njitter = false\n")).await;
    let first = |policy: &Option<std::sync::Arc<dyn RetryPolicy>>| policy.as_ref().unwrap().delay(1, 0.0);
    assert_eq!(first(&builder.settings.retry), Some(60 * SEC), "the longest of handlers");
    assert_eq!(first(&builder.settings.publish_retry), Some(120 * SEC));
    let replaced = builder.retry(crate::Backoff::never());
    assert!(replaced.settings.publish_retry.is_none(), "a call goes before the settings");
}

#[tokio::test]
async fn backoff_that_is_not_enabled_never_grows() {
    let builder = relay(&settings("[backoff]\nenabled = false\nthreshold = 1\n")).await;
    let pace = Topic::new("t").to(TracingPublisher::new()).or(&builder.settings.subscription_defaults).pace();
    assert_eq!(pace.idle_wait(1_000_000), pace.every);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_and_no_variable_makes_reading_panic(text in any::<String>(), value in any::<String>()) {
        let _ = Settings::from_toml(&text);
        let names = ["OUTBOX_MODE", "OUTBOX_POLLER_INTERVAL_MS", "OUTBOX_BACKOFF_MULTIPLIER", "OUTBOX_DATABASE_URL"];
        let _ = Settings::from_toml_and_env(&text, names.map(|name| (name, value.clone())));
    }

    #[test]
    fn a_password_in_a_wrong_url_is_not_shown(
        before in prop_oneof![Just(String::new()), "[a-z:/@?#%]{0,8}[:/@]"],
        after in prop_oneof!["[a-z:/@?#%]{0,8}", Just("db://x".to_owned())],
    ) {
        let url = format!("{before}{SECRET}@{after}");
        let read = Settings::from_toml_and_env("", [("OUTBOX_DATABASE_URL", &url)]);
        if let Err(error) = read {
            prop_assert!(!error.to_string().contains(SECRET), "{url} {error}");
        }
    }
}
