//! RabbitMQ, by a server of its own.
#![cfg(feature = "amqp")]

mod bed;
#[path = "../conformance/mod.rs"]
mod conformance;

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bed::RabbitBed;
use conformance::outages::{publish_until_taken, received_all, wait_until_healthy, wait_until_unhealthy};
use conformance::{Bed, PASSWORD, Share, Wish, assert_no_secret, fates, is_dead, numbered, of_size};
use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use outbox::{Event, Fate, Outgoing, Publisher};
use outbox_testbed::{Plan, Proxy};
use outbox_transports::{Amqp, AmqpSettings};

conformance::tests!(RabbitBed);

fn event(kind: &str) -> Outgoing {
    Outgoing::new(Event::new(kind).json(&1).build().unwrap())
}

/// What failed, and how.
fn failures(publisher_said: &outbox::PublishError, count: usize) -> Vec<(usize, outbox::Failure)> {
    let fates = fates(publisher_said, count).into_iter().enumerate();
    fates
        .filter_map(|(place, fate)| match fate {
            Some(Fate::Failed(failure)) => Some((place, failure)),
            Some(Fate::Published) => None,
            other => panic!("{place}: {other:?}"),
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_no_queue_is_bound_for_fail_and_no_others() {
    let Some(bed) = RabbitBed::open(Share::Shared).await else { return };
    let exchange = format!("{}-direct", bed.name);
    let (_connection, channel) = bed.channel().await;
    let (options, none) = (ExchangeDeclareOptions::default(), FieldTable::default());
    channel
        .exchange_declare(exchange.as_str().into(), ExchangeKind::Direct, options, none.clone())
        .await
        .unwrap();
    channel
        .queue_declare(exchange.as_str().into(), QueueDeclareOptions::default(), none.clone())
        .await
        .unwrap();
    let bind = async |key: &str| {
        let (queue, exchange) = (exchange.as_str().into(), exchange.as_str().into());
        channel.queue_bind(queue, exchange, key.into(), Default::default(), none.clone()).await.unwrap();
    };
    bind("known").await;
    let publisher = bed.with(|settings| settings.exchange = exchange.as_str().into());
    // Many, and to a queue in memory: so one confirm of the broker is for several, some of which have come back.
    let events: Vec<Outgoing> =
        (0..5_000).map(|n| event(if n % 7 == 3 { "unknown" } else { "known" })).collect();
    let error = publisher.publish_batch(&events).await.unwrap_err();
    assert!(!error.is_unavailable());
    let failed = failures(&error, events.len());
    let places: Vec<usize> = failed.iter().map(|(place, _)| *place).collect();
    assert_eq!(places, (0..5_000).filter(|n| n % 7 == 3).collect::<Vec<_>>());
    for (_, failure) in &failed {
        let said = format!(
            "no queue is bound to the exchange `{exchange}` for the routing key `unknown` (NO_ROUTE)"
        );
        assert_eq!(failure.to_string(), said);
        assert!(!is_dead(failure), "somebody may bind one");
    }

    bind("unknown").await;
    let again: Vec<Outgoing> = places.iter().map(|place| events[*place].clone()).collect();
    publisher.publish_batch(&again).await.unwrap();
    let (passive, queue) =
        (QueueDeclareOptions { passive: true, ..Default::default() }, exchange.as_str().into());
    let queue = channel.queue_declare(queue, passive, none.clone()).await.unwrap();
    assert_eq!(queue.message_count(), 5_000);

    let careless = bed.with(|settings| {
        settings.exchange = exchange.as_str().into();
        settings.mandatory = false;
    });
    careless.publish_batch(&[event("elsewhere")]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_that_is_created_later_is_used_then() {
    let Some(bed) = RabbitBed::open(Share::Shared).await else { return };
    let exchange = format!("{}-later", bed.name);
    let publisher = bed.with(|settings| settings.exchange = exchange.as_str().into());
    let events = [numbered(0, Some("k")), numbered(1, Some("k")), numbered(2, None)];
    let error = publisher.publish_batch(&events).await.unwrap_err();
    assert!(error.to_string().contains(&format!("no exchange '{exchange}'")), "{error}");
    assert!(error.is_unavailable(), "no event is to blame: {error}");
    assert_eq!(error.fate(1), Some(Fate::Untried), "it waits behind the first of its key");
    wait_until_unhealthy(&publisher, |reason| reason.contains(&format!("no exchange '{exchange}'"))).await;

    let (_connection, channel) = bed.channel().await;
    let (options, none) = (ExchangeDeclareOptions::default(), FieldTable::default());
    channel
        .exchange_declare(exchange.as_str().into(), ExchangeKind::Fanout, options, none.clone())
        .await
        .unwrap();
    let (queue, exchange) = (bed.name.as_str().into(), exchange.as_str().into());
    channel.queue_bind(queue, exchange, "".into(), Default::default(), none).await.unwrap();
    publisher.publish_batch(&events).await.unwrap();
    assert_eq!(bed.received(3).await.len(), 3);
}

/// RabbitMQ wants a list where a header is called `CC`, and closes the channel over any other, without saying whose it was.
#[tokio::test(flavor = "multi_thread")]
async fn the_one_queue_of_all_events_is_an_outage_until_it_exists() {
    let Some(bed) = RabbitBed::open(Share::Shared).await else { return };
    let queue = format!("{}-queue", bed.name);
    let publisher = bed.with(|settings| {
        settings.exchange = "".into();
        settings.routing_key = queue.parse().unwrap();
    });
    let error = publisher.publish_batch(&[numbered(0, None), numbered(1, Some("k"))]).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains(&queue), "{error}");
    assert_eq!(fates(&error, 2), [Some(Fate::Untried), Some(Fate::Untried)]);
    wait_until_unhealthy(&publisher, |reason| reason.contains(&queue)).await;

    let (_connection, channel) = bed.channel().await;
    let (options, none) = (QueueDeclareOptions::default(), FieldTable::default());
    channel.queue_declare(queue.as_str().into(), options, none).await.unwrap();
    wait_until_healthy(&publisher).await;
    publisher.publish_batch(&[numbered(0, None), numbered(1, Some("k"))]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_the_broker_does_not_stand_is_found_among_others() {
    let Some(bed) = RabbitBed::open(Share::Shared).await else { return };
    let bad = |key: &str| {
        Outgoing::new(Event::new("bad").ordering_key(key).header("CC", "no list").json(&1).build().unwrap())
    };
    let heavy = Outgoing::new(Event::new("heavy").header("h", "x".repeat(200_000)).json(&1).build().unwrap());
    let events =
        [numbered(0, None), bad("k"), numbered(2, Some("k")), numbered(3, Some("j")), heavy, bad("l")];
    let publisher = bed.with(|_| {});
    let error = publisher.publish_batch(&events).await.unwrap_err();
    let fates = fates(&error, events.len());
    for place in [0, 3] {
        assert_eq!(fates[place], Some(Fate::Published), "{place}: {error}");
    }
    assert_eq!(fates[2], Some(Fate::Untried));
    for (place, word) in
        [(1, "PRECONDITION_FAILED"), (4, "its headers have up to"), (5, "PRECONDITION_FAILED")]
    {
        let Some(Fate::Failed(failure)) = &fates[place] else { panic!("{:?}", fates[place]) };
        assert!(is_dead(failure) && failure.to_string().contains(word), "{failure}");
    }
    let ids: HashSet<String> = bed.received(2).await.into_iter().map(|message| message.id).collect();
    assert_eq!(ids, [0, 3].iter().map(|place| events[*place].id().to_string()).collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_full_is_tried_again() {
    let Some(bed) = RabbitBed::open(Share::Shared).await else { return };
    let (_connection, channel) = bed.channel().await;
    let mut limits = FieldTable::default();
    limits.insert("x-max-length".into(), AMQPValue::LongInt(1));
    limits.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    let queue = format!("{}-small", bed.name);
    channel.queue_declare(queue.as_str().into(), QueueDeclareOptions::default(), limits).await.unwrap();
    // The default exchange: the routing key is the name of a queue.
    let publisher = bed.with(|settings| {
        settings.exchange = "".into();
        settings.routing_key = queue.parse().unwrap();
    });
    publisher.publish_batch(&[numbered(0, None)]).await.unwrap();
    let error = publisher.publish_batch(&[numbered(1, None)]).await.unwrap_err();
    let failed = failures(&error, 1);
    assert!(failed[0].1.to_string().contains("nack") && !is_dead(&failed[0].1), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_not_write_is_told_so() {
    let Some(bed) = RabbitBed::open(Share::Shared).await else { return };
    tokio::task::block_in_place(|| {
        bed.control(&["add_user", "bob", PASSWORD]);
        bed.control(&["set_permissions", "bob", "", "", ""]);
    });
    let url = bed.server().url_as("bob", PASSWORD);
    let publisher = bed.with(|settings| settings.url = url.as_str().into());
    let error = publisher.publish_batch(&[numbered(0, None), numbered(1, None)]).await.unwrap_err();
    assert!(error.is_unavailable(), "no event is to blame: {error}");
    assert_eq!(fates(&error, 2), [Some(Fate::Untried), Some(Fate::Untried)]);
    let denied = "ACCESS_REFUSED - access to exchange";
    assert!(error.to_string().contains(denied), "{error}");
    wait_until_unhealthy(&publisher, |reason| reason.contains(denied)).await;
    // Before anything was sent as well.
    let fresh = bed.with(|settings| settings.url = url.as_str().into());
    wait_until_unhealthy(&fresh, |reason| reason.contains(denied)).await;
    tokio::task::block_in_place(|| bed.control(&["set_permissions", "bob", "", ".*", ""]));
    wait_until_healthy(&publisher).await;
    publisher.publish_batch(&[numbered(0, None)]).await.unwrap();
    assert!(bed.received(1).await.len() == 1, "looking at the exchange leaves nothing behind");

    let url = url.replace("/%2f", "/no-such-host");
    let publisher = bed.with(|settings| settings.url = url.as_str().into());
    let error = publisher.publish_batch(&[numbered(0, None)]).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("no-such-host"), "{error}");
    assert_no_secret(&format!("{error:?}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_blocked_is_unavailable_until_it_is_not() {
    let Some(bed) = RabbitBed::open(Share::Own).await else { return };
    let publisher = bed.publisher(&Wish::default());
    publisher.publish_batch(&[numbered(0, Some("k"))]).await.unwrap();
    tokio::task::block_in_place(|| bed.control(&["set_disk_free_limit", "1000000000000000"]));

    let began = Instant::now();
    let events: Vec<Outgoing> = (1..=50).map(|n| numbered(n, Some("k"))).collect();
    let error = publisher.publish_batch(&events).await.unwrap_err();
    assert!(began.elapsed() < Wish::default().timeout, "it is said at once");
    assert!(
        error.is_unavailable() && error.to_string().contains("the broker is blocked: low on disk"),
        "{error}"
    );
    assert!(publisher.health().await.is_err());
    let error = publisher.publish_batch(&events).await.unwrap_err();
    assert!(error.is_unavailable() && error.published() == 0, "{error}");

    tokio::task::block_in_place(|| bed.control(&["set_disk_free_limit", "1000000"]));
    wait_until_healthy(&*publisher).await;
    publisher.publish_batch(&events).await.unwrap();
    let mut seen = HashSet::new();
    let received = bed.received(51).await.into_iter().filter(|message| seen.insert(message.id.clone()));
    let numbers: Vec<usize> = received.map(|message| message.text().parse().unwrap()).collect();
    assert_eq!(numbers, (0..=50).collect::<Vec<_>>(), "in order, repeats apart");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_given_up_is_never_sent_behind_our_back() {
    let Some(bed) = RabbitBed::open(Share::Shared).await else { return };
    let proxy = Proxy::to(bed.server().port());
    let (port, between) = (bed.server().port().to_string(), proxy.port().to_string());
    let publisher = bed.with(|settings| {
        settings.url = bed.server().url().replace(&port, &between).as_str().into();
        settings.ack_timeout = Duration::from_secs(10);
    });
    wait_until_healthy(&publisher).await;
    // Far more than gets through, and than the kernel takes: most of it waits inside the client when confirms stay away.
    let events: Vec<Outgoing> = (0..900).map(|_| of_size(10_000, None)).collect();
    proxy.let_through(900_000);
    let error = publisher.publish_batch(&events).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("confirmed nothing"), "{error}");
    let published = (0..900).filter(|&index| error.fate(index) == Some(Fate::Published)).count();
    // From now on all gets through, also what is under way.
    proxy.let_through(u64::MAX);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let arrived = bed.received(published).await.len();
    assert!(0 < published && published <= arrived && arrived < 800, "{published} of {arrived} confirmed");

    publish_until_taken(&publisher, &events).await;
    let ids: HashSet<String> = received_all(&bed, &events).await.into_iter().map(|m| m.id).collect();
    assert_eq!(ids.len(), 900);
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_checks_the_broker_and_shows_a_certificate() {
    let plan = Plan::rabbitmq().mutual_tls();
    if !plan.is_here() {
        return;
    }
    let server = tokio::task::block_in_place(|| plan.start());
    let settings = || {
        let mut settings = AmqpSettings::new(&server.url(), "", "q".parse().unwrap());
        settings.mandatory = false;
        settings.connect_timeout = Duration::from_secs(20);
        settings
    };
    let file = |path: std::path::PathBuf| Some(path.to_str().unwrap().into());
    let (certificate, key) = server.client_certificate();

    let stranger = Amqp::new("rabbit", settings()).unwrap();
    let error = stranger.publish_batch(&[numbered(0, None)]).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().to_lowercase().contains("certificate"), "{error}");

    let mut nobody = settings();
    nobody.tls.ca_file = file(server.ca_file());
    let error = Amqp::new("rabbit", nobody).unwrap().publish_batch(&[numbered(0, None)]).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");

    let mut known = settings();
    known.tls.ca_file = file(server.ca_file());
    known.tls.cert_file = file(certificate);
    known.tls.key_file = file(key);
    Amqp::new("rabbit", known).unwrap().publish_batch(&[numbered(0, None)]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_receivers_look_for_is_in_the_message() {
    let Some(bed) = RabbitBed::open(Share::Shared).await else { return };
    let event = Event::new("order.placed").correlation("story").json(&1).build().unwrap();
    bed.publisher(&Wish::default()).publish_batch(&[Outgoing::new(event.clone())]).await.unwrap();
    let (_connection, channel) = bed.channel().await;
    let message = channel.basic_get(bed.name.as_str().into(), Default::default()).await.unwrap().unwrap();
    let properties = &message.properties;
    assert_eq!(message.routing_key.as_str(), "order.placed");
    assert_eq!(properties.delivery_mode(), &Some(2), "persistent");
    assert_eq!(properties.message_id().as_ref().unwrap().as_str(), event.id().as_str());
    assert_eq!(properties.kind().as_ref().unwrap().as_str(), "order.placed");
    assert_eq!(properties.correlation_id().as_ref().unwrap().as_str(), "story");
    assert_eq!(properties.timestamp().unwrap(), u64::try_from(event.occurred_at().timestamp()).unwrap());
}

/// The client library would log every message that comes back, with its body.
#[tokio::test(flavor = "multi_thread")]
async fn no_payload_is_logged() {
    static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    struct Log;
    impl std::io::Write for Log {
        fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
            LOG.lock().unwrap().extend_from_slice(text);
            Ok(text.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let log = tracing_subscriber::fmt().with_ansi(false).with_writer(|| Log).finish();
    tracing::subscriber::set_global_default(log).unwrap();
    tracing::info!("something is logged");

    let Some(bed) = RabbitBed::open(Share::Shared).await else { return };
    let publisher = bed.with(|settings| {
        settings.exchange = "".into();
        settings.routing_key = "no-such-queue".parse().unwrap();
    });
    let event = Event::new("e").header("card", "4111-1111").bytes("text/plain", "canary").build().unwrap();
    publisher.publish_batch(&[Outgoing::new(event)]).await.unwrap_err();

    let log = String::from_utf8_lossy(&LOG.lock().unwrap()).into_owned();
    assert!(log.contains("something is logged"));
    let as_numbers = |text: &str| text.bytes().map(|byte| byte.to_string()).collect::<Vec<_>>().join(", ");
    for canary in ["canary", "4111-1111"] {
        assert!(!log.contains(canary) && !log.contains(&as_numbers(canary)), "{log}");
    }
}
