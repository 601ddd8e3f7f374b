//! RabbitMQ, on its own server.
#![cfg(feature = "amqp")]

#[path = "../common/mod.rs"]
mod common;
mod harness;

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::outages::{publish_until_accepted, received_all, wait_until_healthy, wait_until_unhealthy};
use common::{
    Harness, PASSWORD, PublisherOptions, Sharing, assert_no_secret, fates, is_dead, numbered, of_size,
};
use harness::RabbitHarness;
use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use outbox::{Event, EventResult, Outgoing, Publisher};
use outbox_testbed::{Plan, Proxy};
use outbox_transports::{Amqp, AmqpSettings};

common::conformance_tests!(RabbitHarness);

fn event(kind: &str) -> Outgoing {
    Outgoing::new(Event::new(kind).json(&1).build().unwrap())
}

/// The failed events with their failures.
fn failures(error: &outbox::PublishError, count: usize) -> Vec<(usize, outbox::Failure)> {
    let fates = fates(error, count).into_iter().enumerate();
    fates
        .filter_map(|(index, fate)| match fate {
            Some(EventResult::Failed(failure)) => Some((index, failure)),
            Some(EventResult::Published) => None,
            other => panic!("{index}: {other:?}"),
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_messages_without_a_bound_queue_fail() {
    let Some(harness) = RabbitHarness::open(Sharing::Shared).await else { return };
    let exchange = format!("{}-direct", harness.name);
    let (_connection, channel) = harness.channel().await;
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
    let publisher = harness.with(|settings| settings.exchange = exchange.as_str().into());
    // Many events, to a queue in memory: one confirm of the broker then covers several messages,
    // some of them returned.
    let events: Vec<Outgoing> =
        (0..5_000).map(|n| event(if n % 7 == 3 { "unknown" } else { "known" })).collect();
    let error = publisher.publish_batch(&events).await.unwrap_err();
    assert!(!error.is_unavailable());
    let failed = failures(&error, events.len());
    let indexes: Vec<usize> = failed.iter().map(|(index, _)| *index).collect();
    assert_eq!(indexes, (0..5_000).filter(|n| n % 7 == 3).collect::<Vec<_>>());
    for (_, failure) in &failed {
        let expected = format!(
            "no queue is bound to the exchange `{exchange}` for the routing key `unknown` (NO_ROUTE)"
        );
        assert_eq!(failure.to_string(), expected);
        assert!(!is_dead(failure), "a queue may be bound later");
    }

    bind("unknown").await;
    let retried: Vec<Outgoing> = indexes.iter().map(|index| events[*index].clone()).collect();
    publisher.publish_batch(&retried).await.unwrap();
    let (passive, queue) =
        (QueueDeclareOptions { passive: true, ..Default::default() }, exchange.as_str().into());
    let queue = channel.queue_declare(queue, passive, none.clone()).await.unwrap();
    assert_eq!(queue.message_count(), 5_000);

    let optional = harness.with(|settings| {
        settings.exchange = exchange.as_str().into();
        settings.mandatory = false;
    });
    optional.publish_batch(&[event("elsewhere")]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_that_is_created_later_is_used() {
    let Some(harness) = RabbitHarness::open(Sharing::Shared).await else { return };
    let exchange = format!("{}-later", harness.name);
    let publisher = harness.with(|settings| settings.exchange = exchange.as_str().into());
    let events = [numbered(0, Some("k")), numbered(1, Some("k")), numbered(2, None)];
    let error = publisher.publish_batch(&events).await.unwrap_err();
    assert!(error.to_string().contains(&format!("no exchange '{exchange}'")), "{error}");
    assert!(error.is_unavailable(), "no event is to blame: {error}");
    assert_eq!(error.fate(1), Some(EventResult::NotAttempted), "blocked by the first event of its key");
    wait_until_unhealthy(&publisher, |reason| reason.contains(&format!("no exchange '{exchange}'"))).await;

    let (_connection, channel) = harness.channel().await;
    let (options, none) = (ExchangeDeclareOptions::default(), FieldTable::default());
    channel
        .exchange_declare(exchange.as_str().into(), ExchangeKind::Fanout, options, none.clone())
        .await
        .unwrap();
    let (queue, exchange) = (harness.name.as_str().into(), exchange.as_str().into());
    channel.queue_bind(queue, exchange, "".into(), Default::default(), none).await.unwrap();
    publisher.publish_batch(&events).await.unwrap();
    assert_eq!(harness.received(3).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_queue_of_all_events_is_an_outage() {
    let Some(harness) = RabbitHarness::open(Sharing::Shared).await else { return };
    let queue = format!("{}-queue", harness.name);
    let publisher = harness.with(|settings| {
        settings.exchange = "".into();
        settings.routing_key = queue.parse().unwrap();
    });
    let error = publisher.publish_batch(&[numbered(0, None), numbered(1, Some("k"))]).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains(&queue), "{error}");
    assert_eq!(fates(&error, 2), [Some(EventResult::NotAttempted), Some(EventResult::NotAttempted)]);
    wait_until_unhealthy(&publisher, |reason| reason.contains(&queue)).await;

    let (_connection, channel) = harness.channel().await;
    let (options, none) = (QueueDeclareOptions::default(), FieldTable::default());
    channel.queue_declare(queue.as_str().into(), options, none).await.unwrap();
    wait_until_healthy(&publisher).await;
    publisher.publish_batch(&[numbered(0, None), numbered(1, Some("k"))]).await.unwrap();
}

/// RabbitMQ requires a list as the value of the header `CC`, and closes the channel over any other
/// value without naming the message.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_the_broker_rejects_is_isolated() {
    let Some(harness) = RabbitHarness::open(Sharing::Shared).await else { return };
    let bad = |key: &str| {
        Outgoing::new(Event::new("bad").ordering_key(key).header("CC", "no list").json(&1).build().unwrap())
    };
    let heavy = Outgoing::new(Event::new("heavy").header("h", "x".repeat(200_000)).json(&1).build().unwrap());
    let events =
        [numbered(0, None), bad("k"), numbered(2, Some("k")), numbered(3, Some("j")), heavy, bad("l")];
    let publisher = harness.with(|_| {});
    let error = publisher.publish_batch(&events).await.unwrap_err();
    let fates = fates(&error, events.len());
    for index in [0, 3] {
        assert_eq!(fates[index], Some(EventResult::Published), "{index}: {error}");
    }
    assert_eq!(fates[2], Some(EventResult::NotAttempted));
    for (index, expected) in
        [(1, "PRECONDITION_FAILED"), (4, "the headers have up to"), (5, "PRECONDITION_FAILED")]
    {
        let Some(EventResult::Failed(failure)) = &fates[index] else { panic!("{:?}", fates[index]) };
        assert!(is_dead(failure) && failure.to_string().contains(expected), "{failure}");
    }
    let ids: HashSet<String> = harness.received(2).await.into_iter().map(|message| message.id).collect();
    assert_eq!(ids, [0, 3].iter().map(|index| events[*index].id().to_string()).collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_retried() {
    let Some(harness) = RabbitHarness::open(Sharing::Shared).await else { return };
    let (_connection, channel) = harness.channel().await;
    let mut limits = FieldTable::default();
    limits.insert("x-max-length".into(), AMQPValue::LongInt(1));
    limits.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    let queue = format!("{}-small", harness.name);
    channel.queue_declare(queue.as_str().into(), QueueDeclareOptions::default(), limits).await.unwrap();
    // On the default exchange the routing key is the name of a queue.
    let publisher = harness.with(|settings| {
        settings.exchange = "".into();
        settings.routing_key = queue.parse().unwrap();
    });
    publisher.publish_batch(&[numbered(0, None)]).await.unwrap();
    let error = publisher.publish_batch(&[numbered(1, None)]).await.unwrap_err();
    let failed = failures(&error, 1);
    assert!(failed[0].1.to_string().contains("nack") && !is_dead(&failed[0].1), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_write_permission_is_unavailable() {
    let Some(harness) = RabbitHarness::open(Sharing::Shared).await else { return };
    tokio::task::block_in_place(|| {
        harness.control(&["add_user", "bob", PASSWORD]);
        harness.control(&["set_permissions", "bob", "", "", ""]);
    });
    let url = harness.server().url_as("bob", PASSWORD);
    let publisher = harness.with(|settings| settings.url = url.as_str().into());
    let error = publisher.publish_batch(&[numbered(0, None), numbered(1, None)]).await.unwrap_err();
    assert!(error.is_unavailable(), "no event is to blame: {error}");
    assert_eq!(fates(&error, 2), [Some(EventResult::NotAttempted), Some(EventResult::NotAttempted)]);
    let denied = "ACCESS_REFUSED - access to exchange";
    assert!(error.to_string().contains(denied), "{error}");
    wait_until_unhealthy(&publisher, |reason| reason.contains(denied)).await;
    // A publisher that has sent nothing yet is unhealthy too.
    let fresh = harness.with(|settings| settings.url = url.as_str().into());
    wait_until_unhealthy(&fresh, |reason| reason.contains(denied)).await;
    tokio::task::block_in_place(|| harness.control(&["set_permissions", "bob", "", ".*", ""]));
    wait_until_healthy(&publisher).await;
    publisher.publish_batch(&[numbered(0, None)]).await.unwrap();
    assert!(harness.received(1).await.len() == 1, "a health check publishes nothing");

    let url = url.replace("/%2f", "/no-such-host");
    let publisher = harness.with(|settings| settings.url = url.as_str().into());
    let error = publisher.publish_batch(&[numbered(0, None)]).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("no-such-host"), "{error}");
    assert_no_secret(&format!("{error:?}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_broker_is_unavailable_until_it_is_unblocked() {
    let Some(harness) = RabbitHarness::open(Sharing::Exclusive).await else { return };
    let publisher = harness.publisher(&PublisherOptions::default());
    publisher.publish_batch(&[numbered(0, Some("k"))]).await.unwrap();
    tokio::task::block_in_place(|| harness.control(&["set_disk_free_limit", "1000000000000000"]));

    let started = Instant::now();
    let events: Vec<Outgoing> = (1..=50).map(|n| numbered(n, Some("k"))).collect();
    let error = publisher.publish_batch(&events).await.unwrap_err();
    assert!(started.elapsed() < PublisherOptions::default().timeout, "the outage is reported immediately");
    assert!(
        error.is_unavailable() && error.to_string().contains("the broker is blocked: low on disk"),
        "{error}"
    );
    assert!(publisher.health().await.is_err());
    let error = publisher.publish_batch(&events).await.unwrap_err();
    assert!(error.is_unavailable() && error.published() == 0, "{error}");

    tokio::task::block_in_place(|| harness.control(&["set_disk_free_limit", "1000000"]));
    wait_until_healthy(&*publisher).await;
    publisher.publish_batch(&events).await.unwrap();
    let mut seen = HashSet::new();
    let received = harness.received(51).await.into_iter().filter(|message| seen.insert(message.id.clone()));
    let numbers: Vec<usize> = received.map(|message| message.text().parse().unwrap()).collect();
    assert_eq!(numbers, (0..=50).collect::<Vec<_>>(), "in order, repeats apart");
}

#[tokio::test(flavor = "multi_thread")]
async fn abandoned_messages_are_never_sent_later() {
    let Some(harness) = RabbitHarness::open(Sharing::Shared).await else { return };
    let proxy = Proxy::to(harness.server().port());
    let (port, proxy_port) = (harness.server().port().to_string(), proxy.port().to_string());
    let publisher = harness.with(|settings| {
        settings.url = harness.server().url().replace(&port, &proxy_port).as_str().into();
        settings.ack_timeout = Duration::from_secs(10);
    });
    wait_until_healthy(&publisher).await;
    // Far more than the proxy lets through and the kernel buffers: most of it is queued in the
    // client when confirms stop.
    let events: Vec<Outgoing> = (0..900).map(|_| of_size(10_000, None)).collect();
    proxy.allow_bytes(900_000);
    let error = publisher.publish_batch(&events).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("confirmed nothing"), "{error}");
    let published = (0..900).filter(|&index| error.fate(index) == Some(EventResult::Published)).count();
    // From now on everything passes, including data that is still buffered.
    proxy.allow_bytes(u64::MAX);
    // Time for a client that still sends its queue. No later message could show that it does not:
    // the publisher has another connection by then.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let arrived = harness.received(published).await.len();
    assert!(0 < published && published <= arrived && arrived < 800, "{published} of {arrived} confirmed");

    publish_until_accepted(&publisher, &events).await;
    let ids: HashSet<String> = received_all(&harness, &events).await.into_iter().map(|m| m.id).collect();
    assert_eq!(ids.len(), 900);
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_verifies_the_broker_and_sends_a_client_certificate() {
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

    let no_authority = Amqp::new("rabbit", settings()).unwrap();
    let error = no_authority.publish_batch(&[numbered(0, None)]).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().to_lowercase().contains("certificate"), "{error}");

    let mut no_certificate = settings();
    no_certificate.tls.ca_file = file(server.ca_file());
    let error =
        Amqp::new("rabbit", no_certificate).unwrap().publish_batch(&[numbered(0, None)]).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");

    let mut trusted = settings();
    trusted.tls.ca_file = file(server.ca_file());
    trusted.tls.cert_file = file(certificate);
    trusted.tls.key_file = file(key);
    Amqp::new("rabbit", trusted).unwrap().publish_batch(&[numbered(0, None)]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_has_the_expected_properties() {
    let Some(harness) = RabbitHarness::open(Sharing::Shared).await else { return };
    let event = Event::new("order.placed").correlation("order-7").json(&1).build().unwrap();
    harness
        .publisher(&PublisherOptions::default())
        .publish_batch(&[Outgoing::new(event.clone())])
        .await
        .unwrap();
    let (_connection, channel) = harness.channel().await;
    let message = channel.basic_get(harness.name.as_str().into(), Default::default()).await.unwrap().unwrap();
    let properties = &message.properties;
    assert_eq!(message.routing_key.as_str(), "order.placed");
    assert_eq!(properties.delivery_mode(), &Some(2), "persistent");
    assert_eq!(properties.message_id().as_ref().unwrap().as_str(), event.id().as_str());
    assert_eq!(properties.kind().as_ref().unwrap().as_str(), "order.placed");
    assert_eq!(properties.correlation_id().as_ref().unwrap().as_str(), "order-7");
    assert_eq!(properties.timestamp().unwrap(), u64::try_from(event.occurred_at().timestamp()).unwrap());
}

/// The client library would log every returned message with its body.
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
    tracing::info!("logging works");

    let Some(harness) = RabbitHarness::open(Sharing::Shared).await else { return };
    let publisher = harness.with(|settings| {
        settings.exchange = "".into();
        settings.routing_key = "no-such-queue".parse().unwrap();
    });
    let event = Event::new("e").header("card", "4111-1111").bytes("text/plain", "canary").build().unwrap();
    publisher.publish_batch(&[Outgoing::new(event)]).await.unwrap_err();

    let log = String::from_utf8_lossy(&LOG.lock().unwrap()).into_owned();
    assert!(log.contains("logging works"));
    let as_numbers = |text: &str| text.bytes().map(|byte| byte.to_string()).collect::<Vec<_>>().join(", ");
    for canary in ["canary", "4111-1111"] {
        assert!(!log.contains(canary) && !log.contains(&as_numbers(canary)), "{log}");
    }
}
