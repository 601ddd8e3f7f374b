//! Property tests of parsers: a column or a setting may hold any text, and none makes a parser
//! panic or puts a secret into an error.
//!
//! `PROPTEST_CASES` sets how many texts each test tries.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use proptest::prelude::*;

use super::dialect::Columns;
use super::follow_up::StoredFollowUp;
use super::stamp::Stamp;
use super::window::{decode, headers, payload};
use crate::error::{Error, without_credentials};
use crate::event::{AggregateType, Due, Event, EventId, Payload};

/// Stands for a password. No part of an address that may be shown looks like it.
const SECRET: &str = "s3cr3t-canary";

fn time() -> impl Strategy<Value = DateTime<Utc>> {
    (-62_000_000_000_i64..250_000_000_000, 0..1_000_000_u32)
        .prop_map(|(second, micro)| DateTime::from_timestamp(second, micro * 1_000).expect("time in range"))
}

/// JSON, and texts similar to JSON.
fn like_json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("tru".to_owned()),
        any::<i64>().prop_map(|n| n.to_string()),
        any::<f64>().prop_map(|n| n.to_string()),
        any::<String>().prop_map(|text| serde_json::to_string(&text).expect("a text is JSON")),
        Just("\"\\ud800\"".to_owned()),
        Just("\"\\u0000\"".to_owned()),
        "[ -~]{0,12}",
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|all| format!("[{}]", all.join(","))),
            prop::collection::vec(("[a-c]{1}", inner), 0..4).prop_map(|all| {
                let all: Vec<String> =
                    all.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
                format!("{{{}}}", all.join(","))
            }),
        ]
    })
}

fn columns() -> impl Strategy<Value = Columns> {
    let text = || proptest::option::of(any::<String>());
    (
        (any::<String>(), text(), text(), text(), text(), text(), text()),
        (
            proptest::option::of(like_json()),
            proptest::option::of(like_json()),
            proptest::option::of(any::<Vec<u8>>()),
            text(),
        ),
        (stamp(), proptest::option::of(stamp()), stamp(), proptest::option::of(stamp())),
    )
        .prop_map(|(names, body, times)| Columns {
            event_type: names.0,
            aggregate_type: AggregateType::of_column(names.1.as_deref()),
            aggregate_id: names.2,
            tenant_id: names.3,
            ordering_key: names.4.map(Into::into),
            correlation_id: names.5,
            dedup_key: names.6,
            headers: body.0,
            payload: body.1,
            payload_bytes: body.2,
            content_type: body.3,
            occurred_at: times.0,
            expires_at: times.1,
            created_at: times.2,
            due_at: times.3,
        })
}

/// A time as a writer may store it.
fn stamp() -> impl Strategy<Value = Stamp> {
    prop_oneof![
        time().prop_map(Stamp::At),
        any::<i64>().prop_map(Stamp::from_micros),
        Just(Stamp::Before),
        Just(Stamp::After),
        Just(Stamp::Invalid),
    ]
}

/// An event as a builder allows it.
fn event() -> impl Strategy<Value = Event> {
    let name = || "[a-zA-Z][a-zA-Z0-9._-]{0,20}";
    let text = || proptest::option::of("[^\0]{1,20}");
    let body = prop_oneof![
        any::<String>().prop_map(|text| Payload::Json(serde_json::to_string(&text).expect("a text is JSON"))),
        any::<Vec<u8>>().prop_map(|data| Payload::Bytes { content_type: "x/y".to_owned(), data }),
    ];
    let due = prop_oneof![
        Just(Due::Now),
        (0..u64::from(u32::MAX)).prop_map(|micros| Due::After(std::time::Duration::from_micros(micros))),
        time().prop_map(Due::At),
    ];
    (
        name(),
        text(),
        text(),
        text(),
        proptest::collection::btree_map(name(), "[^\0\r\n]{0,10}", 0..3),
        body,
        due,
    )
        .prop_filter_map("the builder refuses it", |(name, tenant, key, dedup, headers, body, due)| {
            let mut event = Event::new(name).headers(&headers);
            if let Some(tenant) = tenant {
                event = event.tenant(tenant);
            }
            if let Some(key) = key {
                event = event.ordering_key(key);
            }
            if let Some(dedup) = dedup {
                event = event.dedup_key(dedup);
            }
            event = match body {
                Payload::Json(text) => event.json_text(text),
                Payload::Bytes { content_type, data } => event.bytes(content_type, data),
            };
            event = match due {
                Due::Now => event,
                Due::After(delay) => event.deliver_after(delay),
                Due::At(at) | Due::Later(at) => event.available_at(at),
            };
            event.build().ok()
        })
}

/// Addresses that contain a password, most of them malformed.
fn address() -> impl Strategy<Value = String> {
    let scheme = prop_oneof![
        Just("postgres"),
        Just("postgresql"),
        Just("mysql"),
        Just("mariadb"),
        Just("mysqlx"),
        Just("POSTGRES"),
        Just(""),
    ];
    let between = prop_oneof![4 => Just("://"), 1 => Just(":"), 1 => Just(":/"), 1 => Just("")];
    let before =
        prop_oneof![Just(""), Just("p@"), Just("p/"), Just("p?"), Just("p#"), Just("%zz"), Just("[")];
    let host = prop_oneof![
        Just("db"),
        Just("db:port"),
        Just("db:99999"),
        Just("[::1"),
        Just("[::1]:5432"),
        Just(""),
        Just("a b"),
        Just("%"),
        Just("db://x"),
    ];
    let rest = prop_oneof![
        Just(String::new()),
        Just("/shop".to_owned()),
        Just(format!("/shop?password={SECRET}")),
        Just(format!("?sslmode=wrong&password={SECRET}")),
        Just(format!("?sslmode={SECRET}&password={SECRET}")),
        Just(format!("?ssl-mode={SECRET}&port={SECRET}")),
        Just(format!("/shop?password={SECRET}&statement-cache-capacity=many")),
        Just("/shop?port=x".to_owned()),
        Just("/shop?ssl-mode=wrong".to_owned()),
        Just("/%ff".to_owned()),
    ];
    (scheme, between, before, host, rest).prop_map(|(scheme, between, before, host, rest)| {
        format!("{scheme}{between}ada:{before}{SECRET}@{host}{rest}")
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn columns_of_any_content_become_an_event_or_a_reason(columns in columns(), check in any::<bool>()) {
        let (json, bytes) = (columns.payload.clone(), columns.payload_bytes.clone());
        let id = EventId::generate();
        match decode(&id, columns, check) {
            Ok(event) => match event.raw_payload() {
                Payload::Json(text) => prop_assert_eq!(Some(text), json.as_ref()),
                Payload::Bytes { data, .. } => prop_assert_eq!(Some(data), bytes.as_ref()),
            },
            // Reasons are stored and shown: they never quote the value.
            Err(reason) => prop_assert!(reason.len() < 120, "{}", reason),
        }
    }

    #[test]
    fn headers_come_back_or_are_refused_without_being_quoted(text in like_json()) {
        if let Err(reason) = headers(Some(&text)) {
            prop_assert!(text.len() < 10 || !reason.contains(&text), "{}", reason);
        }
    }

    #[test]
    fn headers_that_were_written_are_read(map in proptest::collection::btree_map(any::<String>(), any::<String>(), 0..4)) {
        let text = serde_json::to_string(&map).expect("a map of texts is JSON");
        prop_assert_eq!(headers(Some(&text)), Ok(map));
        prop_assert_eq!(headers(None), Ok(BTreeMap::new()));
    }

    #[test]
    fn a_payload_is_json_or_bytes_and_never_both(
        json in proptest::option::of(
            like_json().prop_filter("marks a text that was too large", |text| !text.starts_with('!')),
        ),
        bytes in proptest::option::of(any::<Vec<u8>>()),
        typed in any::<bool>(),
    ) {
        let whole = json.is_some() ^ (bytes.is_some() && typed) && !(json.is_some() && bytes.is_some());
        let content_type = typed.then(|| "x/y".to_owned());
        prop_assert_eq!(payload(json, bytes, content_type, false).is_ok(), whole);
    }

    #[test]
    fn a_promise_of_any_text_is_an_event_or_an_error(text in prop_oneof![like_json(), any::<String>()]) {
        if let Ok(promise) = StoredFollowUp::parse(&text) {
            let _ = promise.into_event();
        }
    }

    #[test]
    fn what_was_promised_is_kept_to_the_byte(event in event()) {
        let text = StoredFollowUp::text(&event).expect("an event can be a follow-up");
        let back = StoredFollowUp::parse(&text).expect("a follow-up is parsed").into_event().expect("a follow-up is an event");
        prop_assert_eq!(back.raw_payload(), event.raw_payload());
        prop_assert_eq!(back.headers(), event.headers());
        prop_assert_eq!(back.due(), event.due());
        prop_assert_eq!(
            (back.id(), back.event_type(), back.tenant_id(), back.ordering_key(), back.dedup_key()),
            (event.id(), event.event_type(), event.tenant_id(), event.ordering_key(), event.dedup_key()),
        );
    }

    /// A follow-up that was damaged in its column is an error or another event: never a panic.
    #[test]
    fn a_damaged_promise_does_not_panic(event in event(), at in any::<prop::sample::Index>(), with in any::<char>()) {
        let mut text: Vec<char> = StoredFollowUp::text(&event).expect("an event can be a follow-up").chars().collect();
        let at = at.index(text.len());
        text[at] = with;
        let text: String = text.into_iter().collect();
        if let Ok(promise) = StoredFollowUp::parse(&text) {
            let _ = promise.into_event();
        }
    }

    #[test]
    fn no_address_is_shown_with_its_password(url in address()) {
        prop_assert!(!without_credentials(&url).contains(SECRET), "{}", without_credentials(&url));
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn what_is_wrong_with_a_postgres_address_is_said_without_its_password(url in address()) {
        let said = crate::connect::postgres(&url).err().map(|e| format!("{e} {e:?} {}", sources(&e)));
        prop_assert!(!said.clone().unwrap_or_default().contains(SECRET), "{} {:?}", url, said);
    }

    #[cfg(feature = "mysql")]
    #[test]
    fn what_is_wrong_with_a_mysql_address_is_said_without_its_password(url in address()) {
        let said = crate::connect::mysql(&url).err().map(|e| format!("{e} {e:?} {}", sources(&e)));
        prop_assert!(!said.clone().unwrap_or_default().contains(SECRET), "{} {:?}", url, said);
    }
}

/// A password in the place of a setting is not repeated either.
#[cfg(feature = "postgres")]
#[test]
fn a_setting_that_holds_the_password_is_not_repeated() {
    let url = format!("postgres:ada:{SECRET}@db?sslmode={SECRET}&password={SECRET}");
    let error = crate::connect::postgres(&url).unwrap_err();
    let said = format!("{error} {error:?} {}", sources(&error));
    assert!(!said.contains(SECRET) && said.contains("for `ssl_mode`"), "{said}");
}

/// The causes of an error, all the way down.
fn sources(error: &Error) -> String {
    let first = std::error::Error::source(error);
    let all = std::iter::successors(first, |error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
