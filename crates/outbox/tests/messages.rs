//! Messages: derived and by hand, enums of messages, versions of payloads.

mod common;

use std::time::Duration;

use outbox::store::Status;
use outbox::{
    Backoff, Context, Event, EventBuilder, FromEvent, GLOBAL, Handled, IntoEvent, MAX_PAYLOAD,
    MESSAGE_VERSION, Message, PayloadError, Query, UpcastError,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const HOUR: Duration = Duration::from_secs(3_600);

fn event(message: impl IntoEvent) -> Event {
    message.into_event(MAX_PAYLOAD).unwrap()
}

fn text(event: &Event) -> &str {
    std::str::from_utf8(event.payload_bytes()).unwrap()
}

/// An event with this payload, and this version in its header.
fn versioned(event_type: &str, version: &str, payload: &str) -> EventBuilder {
    Event::new(event_type).header(MESSAGE_VERSION, version).json_text(payload)
}

fn failure<M: FromEvent>(event: EventBuilder) -> PayloadError {
    match event.build().unwrap().message::<M>() {
        Ok(_) => panic!("it was read"),
        Err(error) => error,
    }
}

mod structs {
    use super::*;

    #[derive(Debug, PartialEq, Message, Serialize, Deserialize)]
    #[message(
        type = "order.placed",
        aggregate = "order/{order}",
        key = "customer-{customer}",
        tenant = "{tenant}",
        dedup = "{{order}} {order:04} of {customer:?}"
    )]
    #[message(tags(order = "{order}", "customer-id" = "{customer}", kind = "placed"))]
    struct OrderPlaced {
        order: u64,
        customer: String,
        tenant: String,
    }

    #[test]
    fn a_derived_message_has_the_attributes_of_its_templates() {
        let placed = || OrderPlaced { order: 42, customer: "ada".into(), tenant: "acme".into() };
        let written = event(placed());
        assert_eq!(written.event_type(), "order.placed");
        assert_eq!(written.aggregate_type(), "order");
        assert_eq!(written.aggregate_id(), Some("42"));
        assert_eq!(written.ordering_key(), Some("customer-ada"));
        assert_eq!(written.tenant_id(), Some("acme"));
        assert_eq!(written.dedup_key(), Some("{order} 0042 of \"ada\""));
        let tags: Vec<&str> = written.tags().iter().map(outbox::Tag::as_str).collect();
        assert_eq!(tags, ["order=42", "customer-id=ada", "kind=placed"]);
        assert_eq!(text(&written), r#"{"order":42,"customer":"ada","tenant":"acme"}"#);
        assert_eq!(written.message::<OrderPlaced>().unwrap(), placed());
        assert_eq!(
            <OrderPlaced as Message>::AGGREGATE_TYPE,
            GLOBAL,
            "rows without an aggregate are read too"
        );
        assert_eq!(OrderPlaced::TYPES, ["order.placed"]);
    }

    #[test]
    fn a_derived_message_with_a_type_alone_is_like_one_by_hand() {
        #[derive(Message, Serialize, Deserialize)]
        #[message(type = "pinged")]
        struct Derived;

        #[derive(Serialize, Deserialize)]
        struct ByHand;
        impl Message for ByHand {
            const TYPE: &'static str = "pinged";
        }

        let strip = |event: Event| {
            let attributes = (event.aggregate_type().clone(), event.ordering_key().map(str::to_owned));
            (event.event_type().clone(), attributes, event.headers().clone(), text(&event).to_owned())
        };
        assert_eq!(strip(event(Derived)), strip(event(ByHand)));
    }

    #[test]
    fn templates_take_fields_of_tuples_and_fields_with_keywords_as_names() {
        #[derive(Message, Serialize, Deserialize)]
        #[message(type = "moved", key = "{0}-{1:?}", aggregate_type = "stock")]
        struct Moved(u8, String);

        #[derive(Message, Serialize, Deserialize)]
        #[message(type = "typed", key = "{type}/{ self_ }")]
        #[message(aggregate = "kind/a/{{{type}}}", aggregate_type = "kind")]
        struct Typed {
            r#type: u8,
            self_: bool,
        }

        let moved = event(Moved(7, "x".into()));
        assert_eq!((moved.ordering_key(), moved.aggregate_id()), (Some("7-\"x\""), None));
        assert_eq!(moved.aggregate_type(), "stock");
        let typed = event(Typed { r#type: 3, self_: true });
        assert_eq!((typed.ordering_key(), typed.aggregate_id()), (Some("3/true"), Some("a/{3}")));
    }
}

mod enums {
    use super::*;

    #[derive(Debug, Clone, PartialEq, Message)]
    #[message(aggregate = "course/{course}", key = "{course}", tags(course = "{course}"))]
    enum Course {
        Defined {
            course: String,
            capacity: u32,
        },
        #[message(type = "StudentSubscribed", key = "{course}/{student}", tags(student = "{student}"))]
        Subscribed {
            course: String,
            student: String,
        },
        #[message(aggregate = "course/all", key = "all", tags(course = "all"))]
        Archived,
        #[message(aggregate = "course/all", key = "all", tags(course = "{0}"))]
        Renamed(String),
        #[message(aggregate = "course/{0}", key = "{0}", tags(course = "{0}-{1}"))]
        Moved(u8, u8),
        #[message(aggregate = "course/all", key = "all", tags(course = "all"))]
        Empty {},
    }

    fn all() -> Vec<Course> {
        vec![
            Course::Defined { course: "c1".into(), capacity: 2 },
            Course::Subscribed { course: "c1".into(), student: "ada".into() },
            Course::Archived,
            Course::Renamed("Rust".into()),
            Course::Moved(1, 2),
            Course::Empty {},
        ]
    }

    #[test]
    fn each_variant_is_an_event_type_with_its_content_as_the_payload() {
        let events: Vec<Event> = all().into_iter().map(event).collect();
        let written: Vec<(&str, &str)> =
            events.iter().map(|event| (event.event_type().as_str(), text(event))).collect();
        assert_eq!(
            written,
            [
                ("Defined", r#"{"course":"c1","capacity":2}"#),
                ("StudentSubscribed", r#"{"course":"c1","student":"ada"}"#),
                ("Archived", "null"),
                ("Renamed", r#""Rust""#),
                ("Moved", "[1,2]"),
                ("Empty", "{}"),
            ]
        );
        assert_eq!(Course::TYPES, written.iter().map(|(event_type, _)| *event_type).collect::<Vec<_>>());
        let read: Vec<Course> = events.iter().map(|event| event.message().unwrap()).collect();
        assert_eq!(read, all());
    }

    #[test]
    fn attributes_of_a_variant_override_those_of_the_enum() {
        let attributes = |course| {
            let event = event(course);
            let tags: Vec<String> = event.tags().iter().map(ToString::to_string).collect();
            let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
            (text(event.aggregate_id()), text(event.ordering_key()), tags.join(","))
        };
        let of = |id: &str, key: &str, tags: &str| (id.to_owned(), key.to_owned(), tags.to_owned());
        let given: Vec<_> = all().into_iter().map(attributes).collect();
        assert_eq!(
            given,
            [
                of("c1", "c1", "course=c1"),
                of("c1", "c1/ada", "course=c1,student=ada"),
                of("all", "all", "course=all"),
                of("all", "all", "course=Rust"),
                of("1", "1", "course=1-2"),
                of("all", "all", "course=all"),
            ]
        );
    }

    #[test]
    fn an_enum_has_the_aggregate_type_that_all_its_variants_share() {
        #[derive(Message)]
        #[message(aggregate_type = "order")]
        enum Mixed {
            Placed,
            #[message(aggregate_type = "invoice")]
            Paid,
        }
        #[derive(Message)]
        #[message(aggregate = "order/7")]
        #[message(aggregate_type = "order")]
        enum Routed {
            Placed,
        }
        assert_eq!((Course::AGGREGATE_TYPE, Mixed::AGGREGATE_TYPE), (GLOBAL, GLOBAL));
        assert_eq!(Routed::AGGREGATE_TYPE, "order");
        assert_eq!(event(Routed::Placed).aggregate_id(), Some("7"));
        assert_eq!(event(Mixed::Placed).aggregate_type(), "order");
        assert_eq!(event(Mixed::Paid).aggregate_type(), "invoice");
    }

    fn double<S: serde::Serializer>(number: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(number * 2)
    }

    #[derive(Debug, PartialEq, Message)]
    #[serde(deny_unknown_fields, rename_all_fields = "camelCase")]
    enum Stock {
        Added {
            item_name: String,
            #[serde(rename = "n", default, serialize_with = "double")]
            amount: u32,
            #[serde(skip)]
            cached: bool,
            #[serde(skip_serializing_if = "Option::is_none")]
            note: Option<String>,
        },
        #[serde(rename_all = "SCREAMING_SNAKE_CASE")]
        Removed { item_name: String },
    }

    #[test]
    fn serde_attributes_of_fields_and_for_fields_are_honoured() {
        let added = Stock::Added { item_name: "tea".into(), amount: 2, cached: true, note: None };
        assert_eq!(text(&event(added)), r#"{"itemName":"tea","n":4}"#);
        assert_eq!(text(&event(Stock::Removed { item_name: "tea".into() })), r#"{"ITEM_NAME":"tea"}"#);

        let read = |payload: Value| Event::new("Added").json(&payload).build().unwrap().message::<Stock>();
        let added = Stock::Added { item_name: "tea".into(), amount: 0, cached: false, note: None };
        assert_eq!(read(json!({ "itemName": "tea" })).unwrap(), added);
        assert!(read(json!({ "itemName": "tea", "other": 1 })).unwrap_err().is_permanent());
    }

    mod renamed {
        pub(super) use outbox as events;
    }

    #[test]
    fn generated_code_does_not_depend_on_the_names_around_it() {
        #![allow(dead_code, non_upper_case_globals, non_camel_case_types, reason = "names that collide")]

        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Placed {
            number: u8,
        }
        const order: u8 = 9;
        struct Result;
        struct Option;
        struct String;
        struct Event;
        type serde = u8;
        type outbox = u8;
        type std = u8;

        #[derive(Debug, PartialEq, Message)]
        #[message(crate = "self::renamed::events", key = "of {order}")]
        enum Order {
            #[message(key = "x")]
            Placed(Placed),
            r#Sent {
                order: u8,
                r#type: u8,
            },
        }

        let placed = event(Order::Placed(Placed { number: 1 }));
        assert_eq!(text(&placed), r#"{"number":1}"#);
        assert_eq!(placed.message::<Order>().unwrap(), Order::Placed(Placed { number: 1 }));
        let sent = event(Order::Sent { order: 2, r#type: 3 });
        assert_eq!((sent.ordering_key(), text(&sent)), (Some("of 2"), r#"{"order":2,"type":3}"#));
        assert_eq!(sent.message::<Order>().unwrap(), Order::Sent { order: 2, r#type: 3 });
    }

    #[test]
    fn an_error_names_the_variant_and_an_unknown_type_is_not_permanent() {
        let error = failure::<Course>(Event::new("Defined").json(&"s3cret"));
        assert_eq!(
            error.to_string(),
            "the payload is not a messages::enums::Course::Defined: Data error at line 1 column 8"
        );
        assert!(error.is_permanent());

        let error = failure::<Stock>(Event::new("Counted").json(&1));
        assert_eq!(
            error.to_string(),
            "the payload is not a messages::enums::Stock: \
             the event type \"Counted\" is none of [\"Added\", \"Removed\"]"
        );
        assert!(!error.is_permanent());

        #[derive(Message, Serialize, Deserialize)]
        #[message(type = "sent")]
        struct Sent;
        let error = failure::<Sent>(Event::new("received").json(&()));
        let expected = "the event type is \"received\", not \"sent\"";
        assert!(error.to_string().ends_with(expected) && !error.is_permanent(), "{error}");
    }

    on_every_database! {
        async fn a_projection_folds_the_messages_of_an_enum(|db|) {
            #[derive(Clone, Debug, Default, PartialEq)]
            struct Seats {
                capacity: u32,
                students: Vec<String>,
            }

            impl Seats {
                fn apply(mut self, event: Course) -> Self {
                    match event {
                        Course::Defined { capacity, .. } => self.capacity = capacity,
                        Course::Subscribed { student, .. } => self.students.push(student),
                        other => panic!("{other:?}"),
                    }
                    self
                }
            }

            let log = db.outbox.log();
            let subscribed = |student: &str| Course::Subscribed { course: "c1".into(), student: student.into() };
            log.append([Course::Defined { course: "c1".into(), capacity: 2 }, subscribed("ada")]).await.unwrap();
            log.append([Course::Defined { course: "c2".into(), capacity: 9 }]).await.unwrap();
            log.append([subscribed("grace")]).await.unwrap();
            let about = || Query::tag("course", "c1").types(Course::TYPES.iter().copied());
            let fold = |seats: Result<Seats, PayloadError>, event: &outbox::LogEvent| {
                Ok(seats?.apply(event.message()?))
            };
            let seats = log.project(about(), Ok(Seats::default()), fold).await.unwrap();
            let expected = Seats { capacity: 2, students: vec!["ada".into(), "grace".into()] };
            assert_eq!(seats.state.unwrap(), expected);

            log.append([Event::new("Defined").tag("course", "c1").json(&"broken")]).await.unwrap();
            let broken = log.project(about(), Ok(Seats::default()), fold).await.unwrap();
            assert!(broken.state.unwrap_err().is_permanent());
        }
    }
}

mod versions {
    use super::*;

    /// Version 3: the total in cents. Version 2: with a currency. Version 1: a bare total in euros.
    #[derive(Debug, PartialEq, Message, Serialize, Deserialize)]
    #[message(type = "paid", version = 3, upcast = upcast_paid)]
    struct Paid {
        cents: i128,
        currency: String,
    }

    fn upcast_paid(version: u32, mut payload: Value) -> Result<Value, UpcastError> {
        Ok(match version {
            1 => json!({ "total": payload, "currency": "EUR" }),
            2 => {
                let total = payload["total"].take().as_u64();
                let total = total.ok_or_else(|| UpcastError::new("the total is not a number"))?;
                json!({ "cents": total * 100, "currency": payload["currency"].take() })
            }
            _ => panic!("a payload of version {version} is not converted"),
        })
    }

    fn eur(cents: i128) -> Paid {
        Paid { cents, currency: "EUR".into() }
    }

    #[derive(Debug, PartialEq, Message)]
    enum Invoice {
        #[message(version = 2, upcast = issue)]
        Issued {
            number: u32,
        },
        Paid(u32),
    }

    fn issue(_: u32, payload: Value) -> Result<Value, UpcastError> {
        let number: u32 = serde_json::from_value(payload)?;
        Ok(json!({ "number": number }))
    }

    #[test]
    fn the_version_is_in_a_header_from_two_on() {
        #[derive(Serialize, Deserialize)]
        struct Sent;
        impl Message for Sent {
            const TYPE: &'static str = "sent";
            const VERSION: u32 = 7;

            fn describe(&self, event: EventBuilder) -> EventBuilder {
                event.header(MESSAGE_VERSION, "1").header("source", "web")
            }
        }

        assert_eq!(MESSAGE_VERSION, "outbox-message-version");
        assert_eq!(event(eur(1)).header(MESSAGE_VERSION), Some("3"));
        assert_eq!(event(Sent).header(MESSAGE_VERSION), Some("7"));
        assert_eq!(event(Sent).header("source"), Some("web"));
        assert_eq!(event(Invoice::Issued { number: 1 }).header(MESSAGE_VERSION), Some("2"));
        assert!(event(Invoice::Paid(1)).headers().is_empty());
    }

    #[test]
    fn an_older_payload_is_converted_step_by_step() {
        for (stored, expected) in [
            (Event::new("paid").json(&9), eur(900)),
            (versioned("paid", "1", "9"), eur(900)),
            (
                versioned("paid", "2", r#"{"total":5,"currency":"USD"}"#),
                Paid { currency: "USD".into(), ..eur(500) },
            ),
            (versioned("paid", "3", r#"{"cents":7,"currency":"EUR"}"#), eur(7)),
            (versioned("paid", "03", r#"{"cents":7,"currency":"EUR"}"#), eur(7)),
        ] {
            assert_eq!(stored.build().unwrap().message::<Paid>().unwrap(), expected);
        }
        let issued = Event::new("Issued").json(&7).build().unwrap();
        assert_eq!(issued.message::<Invoice>().unwrap(), Invoice::Issued { number: 7 });
    }

    #[test]
    fn a_payload_of_the_current_version_is_parsed_directly_and_keeps_all_digits() {
        let many = i128::MAX;
        let written = event(eur(many));
        assert!(text(&written).contains(&many.to_string()));
        assert_eq!(written.message::<Paid>().unwrap(), eur(many));
    }

    #[test]
    fn a_newer_payload_is_read_if_it_parses_and_is_not_permanent_if_it_does_not() {
        let newer = versioned("paid", "4", r#"{"cents":7,"currency":"EUR","note":"x"}"#).build().unwrap();
        assert_eq!(newer.message::<Paid>().unwrap(), eur(7));
        let error = failure::<Paid>(versioned("paid", "5", r#"{"amount":"s3cret"}"#));
        assert_eq!(
            error.to_string(),
            "the payload is not a messages::versions::Paid: it has version 5, \
             this build knows versions up to 3: Data error at line 1 column 19"
        );
        assert!(!error.is_permanent());
    }

    #[test]
    fn a_header_that_is_no_version_is_a_permanent_error() {
        let mut errors = 0;
        for hostile in [
            "",
            "0",
            "00",
            "-1",
            "+1",
            " 1",
            "1 ",
            "1.0",
            "1e3",
            "0x1",
            "v1",
            "1_000",
            "4294967296",
            "99999999999999999999",
            "٣",
            "³",
            "NaN",
            "null",
            "s3cret",
        ] {
            let error = failure::<Paid>(versioned("paid", hostile, r#"{"cents":7,"currency":"EUR"}"#));
            assert_eq!(
                error.to_string(),
                "the payload is not a messages::versions::Paid: \
                 the header outbox-message-version is not a whole number from 1 to 4294967295",
                "{hostile:?}"
            );
            assert!(error.is_permanent(), "{hostile:?}");
            errors += 1;
        }
        assert_eq!(errors, 19);
        let largest = versioned("paid", "4294967295", r#"{"cents":7,"currency":"EUR"}"#).build().unwrap();
        assert_eq!(largest.message::<Paid>().unwrap(), eur(7));
    }

    #[test]
    fn a_payload_that_cannot_be_converted_is_a_permanent_error_without_its_content() {
        for (stored, expected) in [
            (
                versioned("paid", "1", r#""s3cret""#),
                "conversion from version 2 to 3: the total is not a number",
            ),
            (
                versioned("paid", "2", r#"{"total":5,"currency":["s3cret"]}"#),
                "Data error, after the conversion from version 2",
            ),
        ] {
            let error = failure::<Paid>(stored);
            assert_eq!(
                error.to_string(),
                format!("the payload is not a messages::versions::Paid: {expected}")
            );
            assert!(error.is_permanent());
        }
        let error = failure::<Invoice>(Event::new("Issued").json(&"s3cret"));
        assert_eq!(
            error.to_string(),
            "the payload is not a messages::versions::Invoice::Issued: conversion from version 1 to 2: Data error"
        );
        let garbage = Event::new("paid").bytes("image/png", b"\x00\xff".to_vec());
        let expected = "the payload is not a messages::versions::Paid: Syntax error at line 1 column 1";
        assert_eq!(failure::<Paid>(garbage).to_string(), expected);
    }

    async fn book(paid: Paid, _: Context) -> Handled {
        assert_eq!(paid, eur(900));
        Ok(())
    }

    on_every_database! {
        async fn rows_of_every_version_are_delivered_dead_lettered_or_retried(|db|) {
            let relay = db.outbox.single_node().on(book)
                .retry(Backoff::default().base(HOUR).max(HOUR)).start().await.unwrap();
            // Writers in other languages set the header too.
            for (id, headers, payload) in [
                ("one", "NULL", "9"),
                ("two", r#"'{"outbox-message-version": "2"}'"#, r#"{"total": 9, "currency": "EUR"}"#),
                ("three", r#"'{"outbox-message-version": "3"}'"#, r#"{"cents": 900, "currency": "EUR"}"#),
                ("typo", r#"'{"outbox-message-version": "3"}'"#, r#"{"cent": 900, "currency": "EUR"}"#),
                ("hostile", r#"'{"outbox-message-version": "-1"}'"#, r#"{"cents": 900, "currency": "EUR"}"#),
                ("addition", r#"'{"outbox-message-version": "4"}'"#, r#"{"cents": 900, "currency": "EUR", "to": "x"}"#),
                ("newer", r#"'{"outbox-message-version": "4"}'"#, r#"{"euros": 9}"#),
            ] {
                let table = &db.table;
                db.run(&format!(
                    "INSERT INTO {table} (event_id, event_type, headers, payload) \
                     VALUES ('{id}', 'paid', {headers}, '{payload}')"
                )).await.unwrap();
            }
            relay.idle().await.unwrap();
            for (id, status, attempts) in [
                ("one", Status::Done, 0),
                ("two", Status::Done, 0),
                ("three", Status::Done, 0),
                ("typo", Status::Dead, 0),
                ("hostile", Status::Dead, 0),
                ("addition", Status::Done, 0),
                ("newer", Status::Retry, 1),
            ] {
                let stored = db.find(&id.into()).await;
                assert_eq!((stored.status, stored.attempts), (status, attempts), "{id}: {:?}", stored.last_error);
            }
            relay.stop().await.unwrap();
        }
    }
}
