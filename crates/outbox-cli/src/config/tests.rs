use std::collections::BTreeSet;

use outbox::settings::Mode;
use outbox::settings::file::{
    ClaimLocking, Dispatcher, General, IdleBackoff, LogGroup, MetricsGroup, OTHER_NAMES, Poller, PurgeGroup,
    fields,
};

use super::*;

fn parse(text: &str) -> Result<Config, Vec<String>> {
    parse_in(text, &[])
}

fn parse_in(text: &str, environment: &[(&str, &str)]) -> Result<Config, Vec<String>> {
    let environment = environment.iter().copied().collect();
    Config::parse(text, &environment, None)
        .map_err(|found| found.iter().map(|mistake| mistake.in_file("outbox.toml")).collect())
}

fn mistakes(text: &str) -> Vec<String> {
    parse(text).err().unwrap_or_default()
}

fn warnings(text: &str) -> Vec<String> {
    let config = parse(text).unwrap();
    config.warnings.iter().map(|warning| warning.in_file("outbox.toml")).collect()
}

/// Lines 1 to 6 of a valid file; tests append their own lines.
const GOOD: &str = "\
[database]
url = \"sqlite:shop.db\"
[publishers.lines.file]
path = \"events.jsonl\"
[[routes]]
to = \"lines\"
";

#[test]
fn a_valid_file_is_parsed() {
    let config =
        parse(&format!("mode = \"single-node\"\n{GOOD}[poller]\ninterval = \"1s\"\nbatch-size = 7\n"))
            .unwrap();
    assert_eq!(config.groups.mode(), Mode::SingleNode);
    assert_eq!(config.groups.poller.interval.unwrap().to_string(), "1s");
    assert_eq!(config.groups.poller.batch_size.unwrap().get(), 7);
    assert_eq!((config.publishers.len(), config.routes.len()), (1, 1));
    assert!(config.warnings.is_empty());
}

#[test]
fn the_selection_of_a_fleet_is_a_setting() {
    let databases = "[[databases]]\nname = \"a\"\nurl = \"sqlite:a.db\"\n";
    let good = GOOD.replace("[database]\nurl = \"sqlite:shop.db\"\n", databases);
    for (written, choice) in
        [("round-robin", FleetSelection::RoundRobin), ("drain-first", FleetSelection::DrainFirst)]
    {
        let config = parse(&format!("{good}[fleet]\nselection = \"{written}\"\n")).unwrap();
        assert_eq!(config.fleet.selection, Some(choice));
    }
    assert_eq!(parse(&good).unwrap().fleet.selection, None);
    let mistake = mistakes(&format!("{good}[fleet]\nselection = \"random\"\n"));
    let message = "there is no value `random`: use `round-robin` or `drain-first`";
    assert!(mistake.len() == 1 && mistake[0].ends_with(message), "{mistake:?}");
}

/// A-72
#[test]
fn modes_may_be_written_with_underscores() {
    let modes =
        [("single_node", Mode::SingleNode), ("multi_node", Mode::MultiNode), ("ORDERED", Mode::Ordered)];
    for (written, mode) in modes {
        let config = parse(&format!("mode = \"{written}\"\n{GOOD}")).unwrap();
        assert_eq!(config.groups.mode(), mode);
        let config = parse_in(GOOD, &[("OUTBOX_MODE", written)]).unwrap();
        assert_eq!(config.groups.mode(), mode, "by the environment");
    }
}

/// A-72: mistakes are reported with file, line and column.
#[test]
fn a_mistake_is_reported_with_its_line_and_column() {
    for (wrong, message) in [
        ("[poller]\nintervall = \"1s\"", "8:1: there is no setting `intervall`: did you mean `interval`?"),
        ("[poler]\n", "7:2: there is no setting `poler`: did you mean `poller`?"),
        ("[poller]\ninterval = 5", "8:12: invalid type: integer `5`, expected a time such as \"5s\""),
        (
            "[poller]\ninterval = \"5\"",
            "8:12: write a whole number and its unit, as in 500ms, 90s, 5m, 2h, 7d or 4w",
        ),
        ("[claim-locking]\nlease = \"200ms\"", "8:9: 200ms is too short: use at least 1s"),
        ("[dispatcher]\nworkers = 0", "8:11: 0 is not a whole number from 1 to 1,000,000"),
        (
            "[dispatcher]\nworkers = \"4\"",
            "8:11: invalid type: string \"4\", expected a whole number from 1 to 1,000,000",
        ),
        ("[metrics]\nprefix = \"my metrics\"", "8:10: use letters, digits, `_`, `.` and `:`, a letter first"),
        (
            "[http]\nlisten = \"0.0.0.0:9090\"",
            "8:10: 0.0.0.0:9090 can be reached from other machines: set `tls-cert`, `tls-key` and at least one of `tokens` \
             under `[http]`, or listen on 127.0.0.1, or set `allow-remote = true` (--allow-remote) to serve only probes and \
             metrics, without a token",
        ),
        ("[http]\nlisten = \"9090\"", "8:10: invalid socket address syntax"),
        (
            "[[routes]]\ntype = \"x\"\nto = \"line\"",
            "9:6: there is no publisher `line`: did you mean `lines`?",
        ),
        ("[[routes]]\ntype = \"x\"", "7:1: `to` is missing"),
        (
            "[[routes]]\ntag = \"x\"\nto = \"lines\"",
            "8:1: the queue keeps no tags: use `header`, or `[[topics]]` for the log",
        ),
        (
            "[[routes]]\ntype = \"\"\nto = \"lines\"",
            "8:8: an empty pattern matches nothing: use `*` to match anything",
        ),
        (
            "[[routes]]\ntype = 5\nto = \"lines\"",
            "8:8: invalid type: integer `5`, expected a pattern such as \"order.*\", or several in brackets",
        ),
        ("[publishers.a.natz]\n", "7:15: there is no transport `natz`: did you mean `nats`?"),
        (
            "[publishers.a]\npath = \"x\"",
            "8:1: there is no transport `path`: use `amqp`, `file`, `kafka`, `log`, `mqtt`, `nats`, `redis`, `statistics`, `stdout` or `webhook`",
        ),
        ("[publishers.a.file]\n", "7:1: `path` is missing"),
        ("[publishers.a]\n", "7:13: name exactly one transport, as in `[publishers.a.nats]`"),
        (
            "[publishers.a.file]\npath = \"${NO_SUCH_NAME}\"",
            "8:8: the environment variable NO_SUCH_NAME is not set",
        ),
        (
            "[[databases]]\nname = \"a\"\nurl = \"sqlite:a.db\"",
            "7:3: databases are given twice: remove `[database]` (or OUTBOX_DATABASE_URL) or this",
        ),
        ("[[topics]]\nname = \"t\"\nto = [\"lines\", \"lines\"]", "9:16: `lines` is named twice"),
        (
            "[[topics]]\nname = \"t\"\nto = [\"lines\"]\n[topics.publishers.other]\ninterval = \"5s\"",
            "10:20: `other` is not among the publishers in `to`",
        ),
        (
            "[[topics]]\nname = \"t\"\nto = [\"lines\"]\n[topics.publishers.lines]\nintervall = \"5s\"",
            "11:1: there is no setting `intervall`: did you mean `interval`?",
        ),
        ("[[topics]]\nname = \"t\"\nto = []", "8:8: the topic has no publisher: name publishers in `to`"),
        (
            "[retry]\nbase-delay = \"2m\"\nmax-delay = \"1m\"",
            "8:14: `base-delay` (2m) is more than `max-delay` (1m)",
        ),
        ("[poller\n", "7:8: unclosed table, expected `]`"),
    ] {
        assert_eq!(mistakes(&format!("{GOOD}{wrong}\n")), [format!("outbox.toml:{message}")], "{wrong}");
    }
}

#[test]
fn a_mistake_of_the_whole_file_names_the_file() {
    for (text, message) in [
        ("", "outbox.toml: no database: write `url` under `[database]`, or set DATABASE_URL"),
        (
            "[database]\nurl = \"sqlite:x.db\"",
            "outbox.toml: no `[[routes]]`: no event would be delivered; a route with only `to` matches all events",
        ),
        (
            "mode = \"log\"\n[database]\nurl = \"sqlite:x.db\"",
            "outbox.toml: `mode = \"log\"` needs `[[topics]]`",
        ),
        (
            "mode = \"many\"\n[database]\nurl = \"sqlite:x.db\"",
            "outbox.toml:1:8: there is no value `many`: use `single-node`, `multi-node`, `ordered`, `writer-only` or `log`",
        ),
    ] {
        assert_eq!(mistakes(text).first().map(String::as_str), Some(message), "{text}");
    }
}

#[test]
fn an_invalid_database_is_reported_without_its_secrets() {
    for (url, message) in [
        ("oracle://ada:s3cret@db/x", "2:7: it starts with \"oracle\", which is no database known here"),
        ("ada:s3cret@db", "2:7: it does not say which kind of database it is"),
        ("postgres:s3cret@db", "2:7: it needs // and a server after postgres"),
    ] {
        let found = mistakes(&GOOD.replace("sqlite:shop.db", url));
        assert!(found[0].starts_with(&format!("outbox.toml:{message}")), "{found:?}");
        assert!(!found[0].contains("s3cret"), "{found:?}");
    }
    let twice = "[[databases]]\nname = \"a\"\nurl = \"postgres://u:s3cret@h/d\"\n";
    let found = mistakes(&format!(
        "{twice}{}[publishers.l.stdout]\n[[routes]]\nto = \"l\"\n",
        twice.replace("\"a\"", "\"b\"")
    ));
    assert_eq!(
        found,
        ["outbox.toml:6:7: the same database as `a`: its events would be delivered under both names"]
    );
}

#[test]
fn all_mistakes_are_reported_at_once_in_order() {
    let text =
        format!("{GOOD}[poller]\ninterval = 5\n[retry]\njitter = 1\n[[routes]]\nto = \"nowhere\"\n[oops]\n");
    let found = mistakes(&text);
    let lines: Vec<&str> = found.iter().map(|mistake| mistake.split(':').nth(1).unwrap()).collect();
    assert_eq!(lines, ["8", "10", "12", "13"], "{found:#?}");
}

#[test]
fn a_database_with_a_mistake_is_not_reported_as_missing() {
    let text = GOOD.replace("sqlite:shop.db", "${NO_SUCH_NAME}");
    assert_eq!(mistakes(&text), ["outbox.toml:2:7: the environment variable NO_SUCH_NAME is not set"]);
}

#[test]
fn a_suspicious_setting_is_a_warning() {
    assert_eq!(
        warnings(&format!("{GOOD}[[routes]]\ntype = \"x\"\nto = \"lines\"\n")),
        ["outbox.toml:9:6: this route is never reached: the route on line 6 matches all events"]
    );
    assert_eq!(
        warnings(&format!("{GOOD}[publishers.idle.stdout]\n")),
        ["outbox.toml:7:13: the publisher `idle` is not used: no route and no topic names it"]
    );
}

/// A-72: environment variables override single settings.
#[test]
fn the_environment_overrides_the_file() {
    let text = format!("{GOOD}[poller]\ninterval = \"9s\"\nbatch-size = 9\n");
    let environment = [
        ("OUTBOX_POLLER_INTERVAL", "1s"),
        ("OUTBOX_CLAIM_LOCKING_LEASE", "30s"),
        ("OUTBOX_DISPATCHER_WORKERS", "8"),
        ("OUTBOX_RETRY_JITTER", "false"),
        ("OUTBOX_MODE", "ordered"),
        ("OUTBOX_ON_DEAD", "skip"),
        ("OUTBOX_DATABASE_URL", "sqlite:a$b.db"),
        ("OUTBOX_HTTP_LISTEN", "127.0.0.1:1234"),
        ("OUTBOX_SOMETHING_ELSE", "is ignored"),
    ];
    let config = parse_in(&text, &environment).unwrap();
    let groups = &config.groups;
    assert_eq!(groups.poller.interval.unwrap().to_string(), "1s");
    assert_eq!(groups.poller.batch_size.unwrap().get(), 9, "as the file says");
    assert_eq!(groups.claim_locking.lease.unwrap().to_string(), "30s");
    assert_eq!(groups.dispatcher.workers.unwrap().get(), 8);
    assert_eq!((groups.retry.jitter, groups.mode()), (Some(false), Mode::Ordered));
    assert_eq!(config.http.listen.unwrap().get_ref().port(), 1234);
    let Source::One(database) = config.source else { panic!("one database") };
    assert_eq!(database.url.unwrap().get_ref().expose(), "sqlite:a$b.db");
}

#[test]
fn a_mistake_of_the_environment_names_the_variable() {
    for (name, value, message) in [
        ("OUTBOX_POLLER_INTERVAL", "5", "invalid type: integer `5`, expected a time such as \"5s\""),
        (
            "OUTBOX_MODE",
            "both",
            "there is no value `both`: use `single-node`, `multi-node`, `ordered`, `writer-only` or `log`",
        ),
        ("OUTBOX_CLAIM_LOCKING_LEASE", "1ms", "1ms is too short: use at least 1s"),
    ] {
        assert_eq!(parse_in(GOOD, &[(name, value)]).err(), Some(vec![format!("{name}: {message}")]));
    }
}

#[test]
fn a_file_without_a_database_uses_the_fallback() {
    let text = GOOD.replace("[database]\nurl = \"sqlite:shop.db\"\n", "");
    let config = Config::parse(&text, &Environment::default(), Some("sqlite:given.db")).unwrap();
    assert!(
        config.summary().iter().any(|(_, lines)| lines == &["sqlite:given.db"]),
        "{:?}",
        config.summary()
    );
}

/// The examples of the guide are correct.
#[cfg(feature = "nats")]
#[test]
fn the_first_file_of_the_guide_is_good_and_its_table_names_every_setting() {
    const GUIDE: &str = include_str!("../../../../docs/guide/relay.md");
    let first = GUIDE.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let config = Config::parse(first, &Environment::default(), Some("postgres://db/shop")).unwrap();
    assert_eq!((config.publishers["orders"].kind, config.routes.len()), ("nats", 1));
    let groups = [
        fields::<General>(),
        fields::<DatabaseGroup>(),
        fields::<Fleet>(),
        fields::<Dispatcher>(),
        fields::<Poller>(),
        fields::<ClaimLocking>(),
        fields::<Retry>(),
        fields::<PurgeGroup>(),
        fields::<LogGroup>(),
        fields::<IdleBackoff>(),
        fields::<MetricsGroup>(),
        fields::<Http>(),
        fields::<Topic>(),
    ];
    for setting in groups.concat() {
        assert!(GUIDE.contains(&format!("`{setting}`")), "{setting}");
    }
}

#[cfg(feature = "webhook")]
#[test]
fn a_setting_that_a_publisher_refuses_is_reported_at_its_place() {
    let url = "https://hooks.example.com/";
    for (settings, expected) in [
        ("url = \"https://127.0.0.1/\"".to_owned(), "8:7: url: 127.0.0.1 is not on the public internet"),
        (format!("url = \"{url}\"\nsecrets = [\"short\"]"), "9:11: secrets: a secret must have at least 16"),
        (format!("url = \"{url}\"\nconnect-timeout = \"5s\"\nallow = [\"a b\"]"), "10:9: allow: \"a b\""),
        (format!("tls.cert-file = \"a.pem\"\nurl = \"{url}\""), "8:1: tls: cert_file needs key_file"),
    ] {
        let found = mistakes(&format!("{GOOD}[publishers.hook.webhook]\n{settings}\n")).concat();
        assert!(found.starts_with(&format!("outbox.toml:{expected}")), "{expected}: {found}");
    }
}

/// A file may mix both spellings, for example if parts of it were copied.
#[test]
fn a_hyphen_and_an_underscore_are_the_same_in_the_name_of_a_setting() {
    let text = GOOD.replace("[[routes]]", "[[routes]]\naggregate_type = \"*\"");
    let config = parse(&format!("on_dead = \"skip\"\n{text}[poller]\nbatch_size = 3\n")).unwrap();
    assert_eq!(config.groups.poller.batch_size.unwrap().get(), 3);
    assert!(config.groups.general.on_dead.is_some() && config.routes[0].aggregate_type.is_some());
}

#[test]
fn changed_settings_that_need_a_restart_are_found() {
    let old = parse(GOOD).unwrap();
    let same = parse(&GOOD.replace("events.jsonl", "other.jsonl")).unwrap();
    assert!(old.fixed_parts_that_differ(&same).is_empty());
    let new =
        parse(&format!("mode = \"ordered\"\n{}[poller]\ninterval = \"1s\"\n", GOOD.replace("shop", "x")))
            .unwrap();
    assert_eq!(old.fixed_parts_that_differ(&new), ["database", "mode", "poller"]);
}

/// The sample with every setting enabled, and one of the three sources of events.
fn sample(source: &str) -> String {
    let mut text = String::new();
    let mut header = String::new();
    for line in SAMPLE.lines() {
        let is_setting = |c: char| c.is_ascii_lowercase() || c == '[';
        let line = line.strip_prefix('#').filter(|rest| rest.starts_with(is_setting)).unwrap_or(line);
        if line.starts_with('[') {
            header = line.trim_matches(['[', ']']).to_owned();
        }
        let other_source =
            ["database", "databases", "discovery"].contains(&header.as_str()) && header != source;
        // A transport that this binary was built without is a mistake.
        let not_here = |(kind, built): &(&str, bool)| !built && header.split('.').nth(2) == Some(*kind);
        if !other_source && !TRANSPORTS.iter().any(not_here) {
            text.push_str(line);
        }
        text.push('\n');
    }
    text
}

/// A-72: the sample is documentation and must be correct.
#[test]
fn the_sample_parses_as_it_is_and_with_everything_in_it() {
    assert!(parse(SAMPLE).unwrap().warnings.is_empty());
    for source in ["database", "databases", "discovery"] {
        // SQLite has no schemas.
        let text = sample(source).replace("sqlite:shop.db", "postgres://db/shop");
        let config = parse(&text).unwrap_or_else(|mistakes| panic!("{source}: {mistakes:#?}"));
        assert_eq!(config.source.is_fleet(), source != "database");
    }
}

#[test]
fn the_sample_names_every_setting() {
    let tables: Vec<(&str, &[&str])> = vec![
        ("", fields::<General>()),
        ("database", fields::<DatabaseGroup>()),
        ("databases", fields::<NamedDatabase>()),
        ("discovery", fields::<sources::Discovery>()),
        ("fleet", fields::<Fleet>()),
        ("dispatcher", fields::<Dispatcher>()),
        ("poller", fields::<Poller>()),
        ("claim-locking", fields::<ClaimLocking>()),
        ("retry", fields::<Retry>()),
        ("purge", fields::<PurgeGroup>()),
        ("log", fields::<LogGroup>()),
        ("backoff", fields::<IdleBackoff>()),
        ("metrics", fields::<MetricsGroup>()),
        ("http", fields::<Http>()),
        ("publishers.lines.file", fields::<transports::File>()),
        ("publishers.counts.statistics", fields::<transports::Statistics>()),
        #[cfg(feature = "amqp")]
        ("publishers.exchange.amqp", fields::<outbox_transports::AmqpSettings>()),
        #[cfg(feature = "kafka")]
        ("publishers.topic.kafka", fields::<outbox_transports::KafkaSettings>()),
        #[cfg(feature = "mqtt")]
        ("publishers.devices.mqtt", fields::<outbox_transports::MqttSettings>()),
        #[cfg(feature = "nats")]
        ("publishers.orders.nats", fields::<outbox_transports::NatsSettings>()),
        #[cfg(feature = "redis")]
        ("publishers.stream.redis", fields::<outbox_transports::RedisSettings>()),
        #[cfg(feature = "webhook")]
        ("publishers.partner.webhook", fields::<outbox_transports::WebhookSettings>()),
        ("routes", fields::<Route>()),
        ("topics", fields::<Topic>()),
        ("topics.publishers.lines", fields::<topics::PublisherPace>()),
    ];
    let mut named = BTreeSet::new();
    let mut header = String::new();
    for line in SAMPLE.lines() {
        // Alternatives to the settings above them are indented.
        let line = line.trim_start_matches('#').trim_start();
        if line.starts_with('[') {
            header = line.trim_matches(['[', ']']).to_owned();
        } else if let Some((setting, _)) = line.split_once(" = ") {
            named.insert((header.clone(), setting.to_owned()));
        }
    }
    for (table, settings) in tables {
        assert!(!settings.is_empty(), "{table}");
        for setting in settings {
            assert!(named.contains(&(table.to_owned(), setting.replace('_', "-"))), "[{table}] {setting}");
        }
    }
    for name in top() {
        let is_there =
            named.iter().any(|(table, setting)| table.split('.').next() == Some(name) || setting == name);
        assert!(is_there, "{name}");
    }
}

/// C-04. A publisher's settings override those of its topic, which override those of all topics.
#[test]
fn each_publisher_of_a_topic_has_its_batch_size_and_interval() {
    let text = format!(
        "{GOOD}[log]\nbatch-size = 10\ninterval = \"1m\"\n[publishers.b.stdout]\n\
         [[topics]]\nname = \"t\"\nto = [\"lines\", \"b\"]\nbatch-size = 20\n[topics.publishers.b]\ninterval = \"5s\"\n\
         [[topics]]\nname = \"u\"\nto = [\"lines\"]\npublishers = {{ lines = {{ batch-size = 30, timeout = \"2s\" }} }}\n"
    );
    let config = parse(&text).unwrap();
    let paced = |topic: usize, publisher: &str| {
        let topic = &config.topics[topic];
        let subscription = topic.selection().to(outbox::TracingPublisher::named(publisher.to_owned()));
        format!("{:?}", topic.pace(subscription, publisher))
    };
    for (topic, publisher, pace) in [
        (0, "lines", "batch: Some(20), interval: None"),
        (0, "b", "batch: Some(20), interval: Some(5s)"),
        (1, "lines", "batch: Some(30), interval: None"),
    ] {
        let paced = paced(topic, publisher);
        assert!(paced.contains(pace), "{paced}");
    }
    assert!(paced(1, "lines").contains("timeout: Some(2s)"));
}

/// A-72: an application and the daemon can share a file.
#[test]
fn a_file_that_an_application_shares_is_good_for_the_daemon() {
    const SHARED: &str = include_str!("../../../outbox/tests/settings/shared.toml");
    let config = parse(SHARED).unwrap();
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    assert_eq!(config.groups.dispatcher.workers.unwrap().get(), 2);
    assert_eq!(config.groups.poller.interval.unwrap().to_string(), "1h");
}

/// A-72: the guide lists every other name of a setting.
#[test]
fn the_guide_has_a_table_of_other_names() {
    const GUIDE: &str = include_str!("../../../../docs/guide/settings.md");
    let rows: Vec<&str> = GUIDE.lines().filter(|line| line.starts_with("| `")).collect();
    for other in OTHER_NAMES {
        let group = if matches!(other.group, "" | "topics") { "" } else { other.group };
        let name = if group.is_empty() { other.name.to_owned() } else { format!("{group}.{}", other.name) };
        let row = rows.iter().find(|row| row.contains(&format!("`{name}`")));
        assert!(row.is_some_and(|row| row.contains(&format!("`{}`", other.setting))), "{name}: {row:?}");
    }
}

/// C-04: topics as in property files.
#[test]
fn topics_may_be_written_as_crablet_has_them() {
    let text = format!(
        "batch-size = 40\npolling-interval-ms = 5000\n{GOOD}[publishers.b.stdout]\n\
         [topics.wallet-events]\nrequired-tags = \"wallet_id\"\npublishers = \"lines, b\"\npolling-interval-ms = 100\n\
         [topics.payment-events]\nany_of_tags = \"payment_id,transfer_id\"\nto = [\"b\"]\n\
         [topics.payment-events.publishers.b]\nbatch_size = 7\npolling_interval_ms = 200\n"
    );
    let config = parse(&text).unwrap();
    let topic =
        |name: &str| config.topics.iter().find(|topic| topic.name.get_ref().as_str() == name).unwrap();
    let (wallets, payments) = (topic("wallet-events"), topic("payment-events"));
    let to = |topic: &Topic| topic.to.iter().map(|to| to.get_ref().clone()).collect::<Vec<_>>();
    assert_eq!((to(wallets), to(payments)), (vec!["lines".into(), "b".into()], vec!["b".into()]));
    assert_eq!(wallets.required_tags, ["wallet_id".into()]);
    assert_eq!(payments.any_of_tags, ["payment_id".into(), "transfer_id".into()]);
    assert_eq!(wallets.interval.unwrap().to_string(), "100ms");
    let subscription = payments.selection().to(outbox::TracingPublisher::named("b"));
    let paced = format!("{:?}", payments.pace(subscription, "b"));
    assert!(paced.contains("batch: Some(7), interval: Some(200ms)"), "{paced}");
    let log = &config.groups.log;
    assert_eq!((log.batch_size.unwrap().get(), log.interval.unwrap().to_string()), (40, "5s".to_owned()));

    for (wrong, message) in [
        ("[topics.t]\nname = \"u\"\nto = [\"lines\"]", "`t` is another name of `name`"),
        ("[topics.t]\nto = [\"lines\"]\nrequired-tags = \"\"", "`` cannot be the name of a tag"),
        ("[topics.t]\nto = [\"lines\"]\nrequired-tags = \"a,,b\"", "`` cannot be the name of a tag"),
        ("[topics.t]\npublishers = \"\"", "there is no publisher ``"),
        (
            "[topics.t]\nto = [\"lines\"]\ninterval = \"1s\"\npolling-interval-ms = 5",
            "`interval`, which has another value",
        ),
        ("[topics]\nt = 5", "invalid type: integer `5`, expected struct Topic"),
    ] {
        let found = mistakes(&format!("{GOOD}{wrong}\n"));
        assert!(found.len() == 1 && found[0].contains(message), "{wrong}: {found:?}");
    }
    let twice =
        parse(&format!("{GOOD}[publishers.b.stdout]\n[topics.t]\npublishers = \"lines\"\nto = [\"b\"]\n"));
    let message = "outbox.toml:9:1: `publishers` is another name of `to`, which has another value: give one";
    assert!(twice.unwrap_err().iter().any(|mistake| mistake == message));
    let found = mistakes(&format!("topics = 5\n{GOOD}"));
    assert_eq!(found, ["outbox.toml:1:1: use one `[[topics]]` table for each"]);
}

/// A-50
#[test]
fn writer_only_needs_no_routes_and_has_no_use_for_any() {
    let database = "mode = \"writer-only\"\n[database]\nurl = \"sqlite:shop.db\"\n";
    let config = parse(database).unwrap();
    assert_eq!((config.groups.mode(), config.routes.len()), (Mode::WriterOnly, 0));
    for (text, message) in [
        (
            format!("mode = \"writer-only\"\n{GOOD}"),
            "outbox.toml:7:6: `mode = \"writer-only\"` delivers nothing: routes are not used",
        ),
        (
            format!("{database}[publishers.l.stdout]\n[[topics]]\nname = \"t\"\nto = [\"l\"]\n"),
            "outbox.toml:6:8: `mode = \"writer-only\"` publishes nothing: use `mode = \"log\"` to publish topics only",
        ),
        (
            "mode = \"writer-only\"\n[[databases]]\nname = \"a\"\nurl = \"sqlite:a.db\"\n".to_owned(),
            "outbox.toml: `mode = \"writer-only\"` needs one `[database]`: for several databases, start a relay for each",
        ),
        (
            format!("{GOOD}[purge]\ndelete-undelivered = true\n"),
            "outbox.toml:8:22: for `mode = \"writer-only\"` alone: `multi-node` would delete events before it delivers them",
        ),
    ] {
        assert_eq!(mistakes(&text), [message], "{text}");
    }
}

/// C-05
#[test]
fn the_publishers_of_the_library_are_transports() {
    let text = GOOD.replace("[publishers.lines.file]\npath = \"events.jsonl\"\n", "[publishers.lines.log]\n");
    assert_eq!(parse(&text).unwrap().publishers["lines"].kind, "log");
    let counted = |settings: &str| {
        text.replace("[publishers.lines.log]\n", &format!("[publishers.lines.statistics]\n{settings}"))
    };
    for good in ["", "every = \"1s\"\n"] {
        assert_eq!(parse(&counted(good)).unwrap().publishers["lines"].kind, "statistics");
    }
    for (wrong, message) in [
        (text.replace(".log]\n", ".log]\nlevel = \"info\"\n"), "4:1: there is no setting `level`"),
        (counted("every = 5\n"), "4:9: invalid type: integer `5`, expected a time such as \"5s\""),
        (counted("every = \"999ms\"\n"), "4:9: 999ms is too short: use at least 1s"),
        (counted("every = \"\"\n"), "4:9: write a whole number and its unit"),
    ] {
        let found = mistakes(&wrong);
        assert!(found.len() == 1 && found[0].starts_with(&format!("outbox.toml:{message}")), "{found:?}");
    }
}
