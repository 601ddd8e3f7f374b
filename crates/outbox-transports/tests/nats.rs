//! NATS JetStream, on its own server.
#![cfg(feature = "nats")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::stream::{Config, DiscardPolicy, Info};
use async_nats::{ConnectOptions, jetstream};
use async_trait::async_trait;
use base64::Engine as _;
use common::outages::{publish_until_accepted, wait_until_healthy, wait_until_unhealthy};
use common::{
    Destination, Harness, MAX_STALL, PASSWORD, PublisherOptions, Received, SOURCE, Sharing, USER, Wait,
    is_dead, numbered, of_size, poll,
};
use futures_util::future::join_all;
use outbox::{Event, EventResult, Outgoing, Publisher};
use outbox_testbed::{Plan, Proxy, Server};
use outbox_transports::{Guarantees, Nats, NatsSettings};

struct NatsHarness {
    server: Server,
}

impl NatsHarness {
    fn settings(&self, options: &PublisherOptions) -> NatsSettings {
        let subject = match options.destination {
            Destination::Existing => "orders.{type}",
            Destination::Missing => "nowhere.at-all",
        };
        let mut settings = NatsSettings::new(&self.server.bare_url(), subject.parse().unwrap());
        settings.user = Some(USER.into());
        settings.password = Some(options.password.into());
        settings.format = options.format;
        settings.source = SOURCE.into();
        settings.connect_timeout = options.timeout;
        settings.ack_timeout = options.timeout;
        settings
    }

    async fn jetstream(&self) -> jetstream::Context {
        let options = ConnectOptions::with_user_and_password(USER.to_owned(), PASSWORD.to_owned());
        jetstream(&self.server, options).await
    }
}

async fn jetstream(server: &Server, options: ConnectOptions) -> jetstream::Context {
    let client = options.connection_timeout(MAX_STALL).connect(server.bare_url()).await.unwrap();
    ContextBuilder::new().timeout(MAX_STALL).build(client)
}

#[async_trait]
impl Harness for NatsHarness {
    const GUARANTEES: Guarantees = Nats::GUARANTEES;

    async fn open(_: Sharing) -> Option<Self> {
        let plan = Plan::nats().user(USER, PASSWORD);
        if !plan.is_here() {
            return None;
        }
        let harness = Self { server: plan.start() };
        let stream = Config { name: "orders".into(), subjects: vec!["orders.>".into()], ..Config::default() };
        harness.jetstream().await.create_stream(stream).await.unwrap();
        Some(harness)
    }

    fn publisher(&self, options: &PublisherOptions) -> Arc<dyn Publisher> {
        Arc::new(Nats::new("nats", self.settings(options)).unwrap())
    }

    fn debug_output(&self) -> String {
        let mut settings = self.settings(&PublisherOptions::default());
        settings.url = self.server.url().as_str().into();
        settings.token = None;
        format!("{settings:?} {:?}", Nats::new("nats", settings.clone()).unwrap())
    }

    async fn received(&self, count: usize) -> Vec<Received> {
        let stream = self.jetstream().await.get_stream("orders").await.unwrap();
        let mut wait = Wait::until(count);
        let state = loop {
            let Info { state, .. } = stream.get_info().await.unwrap();
            if wait.is_over(usize::try_from(state.messages).unwrap()).await {
                break state;
            }
        };
        let mut received = Vec::new();
        if state.messages == 0 {
            return received;
        }
        for sequence in state.first_sequence..=state.last_sequence {
            let message = stream.get_raw_message(sequence).await.unwrap();
            let header = |name: &str| message.headers.get(name).map(|value| value.as_str().to_owned());
            let headers = message.headers.iter();
            received.push(Received {
                id: header("Nats-Msg-Id").unwrap(),
                content_type: header("Content-Type"),
                headers: headers
                    .map(|(name, values)| (name.to_string(), values[0].as_str().to_owned()))
                    .collect(),
                body: message.payload.to_vec(),
            });
        }
        received
    }

    fn missing_name(&self) -> Option<String> {
        Some("nowhere.at-all".to_owned())
    }

    async fn create_missing(&self) {
        let subjects = vec!["nowhere.>".into()];
        let stream = Config { name: "nowhere".into(), subjects, ..Config::default() };
        self.jetstream().await.create_stream(stream).await.unwrap();
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.server.port())
    }

    fn publisher_at(&self, address: &str, tls: bool) -> Option<Arc<dyn Publisher>> {
        let mut settings = self.settings(&PublisherOptions::default());
        settings.url = format!("{}://{address}", if tls { "tls" } else { "nats" }).as_str().into();
        Some(Arc::new(Nats::new("nats", settings).unwrap()))
    }

    fn oversized_payload(&self) -> usize {
        1_048_576
    }

    fn stop(&mut self) {
        self.server.stop();
    }

    fn kill(&mut self) {
        self.server.kill();
    }

    fn start(&mut self) {
        self.server.start();
    }

    fn freeze(&mut self) -> bool {
        self.server.freeze();
        true
    }

    fn thaw(&mut self) {
        self.server.thaw();
    }
}

common::conformance_tests!(NatsHarness);

/// Starts a server with one stream for `orders.>`, and a publisher to it.
async fn served(
    plan: Plan,
    stream: Config,
    change: impl FnOnce(&Server, &mut NatsSettings),
) -> Option<(Server, Nats)> {
    if !plan.is_here() {
        return None;
    }
    let server = plan.start();
    let stream = Config { name: "orders".into(), subjects: vec!["orders.>".into()], ..stream };
    jetstream(&server, ConnectOptions::new()).await.create_stream(stream).await.unwrap();
    let mut settings = NatsSettings::new(&server.url(), "orders.{type}".parse().unwrap());
    change(&server, &mut settings);
    Some((server, Nats::new("nats", settings).unwrap()))
}

async fn messages(server: &Server) -> u64 {
    let jetstream = jetstream(server, ConnectOptions::new()).await;
    jetstream.get_stream("orders").await.unwrap().get_info().await.unwrap().state.messages
}

#[tokio::test]
async fn abandoned_messages_are_never_sent_later() {
    let mut proxy = None;
    let through_proxy = |server: &Server, settings: &mut NatsSettings| {
        let proxied = Proxy::to(server.port());
        settings.url = format!("nats://127.0.0.1:{}", proxied.port()).as_str().into();
        // The timeout of a message starts when it is queued behind the others.
        settings.ack_timeout = Duration::from_secs(120);
        proxy = Some(proxied);
    };
    let Some((server, publisher)) = served(Plan::nats(), Config::default(), through_proxy).await else {
        return;
    };
    let proxy = proxy.unwrap();
    wait_until_healthy(&publisher).await;
    // Ten times as much as the proxy lets through: most of it is queued in the client when the
    // connection breaks.
    let events: Vec<Outgoing> = (0..900).map(|_| of_size(10_000, None)).collect();
    proxy.allow_bytes(900_000);
    let (outcome, ()) = tokio::join!(publisher.publish_batch(&events), async {
        let have_arrived = async || match messages(&server).await {
            arrived @ 0..20 => Err(arrived),
            _ => Ok(()),
        };
        poll("twenty messages have arrived", MAX_STALL, have_arrived).await;
        proxy.cut();
    });
    let error = outcome.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    let published = (0..900).filter(|&index| error.fate(index) == Some(EventResult::Published)).count();
    // Time for a client that still sends its queue. No later message could show that it does not:
    // the publisher has another client by then.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let arrived = messages(&server).await;
    assert!(published as u64 <= arrived && arrived < 300, "{published} were confirmed, {arrived} arrived");

    publish_until_accepted(&publisher, &events).await;
    assert_eq!(messages(&server).await, 900);
}

#[tokio::test]
async fn tls_verifies_the_server_and_sends_a_client_certificate() {
    let plan = Plan::nats().user(USER, PASSWORD).mutual_tls();
    if !plan.is_here() {
        return;
    }
    let server = plan.start();
    let (certificate, key) = server.client_certificate();
    let file = |path: &std::path::Path| Some(path.to_str().unwrap().into());
    let publisher = |change: &dyn Fn(&mut NatsSettings)| {
        let mut settings = NatsSettings::new(&server.url(), "orders.{type}".parse().unwrap());
        change(&mut settings);
        Nats::new("nats", settings).unwrap()
    };
    let trusted = publisher(&|settings| {
        settings.tls.ca_file = file(&server.ca_file());
        settings.tls.cert_file = file(&certificate);
        settings.tls.key_file = file(&key);
    });
    // Authenticated, and there is no stream.
    wait_until_unhealthy(&trusted, |reason| reason.contains("no stream accepts the subject `orders.>`"))
        .await;
    let error = trusted.publish_batch(&[numbered(1, None)]).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("no stream accepts the subject"), "{error}");

    let no_certificate = publisher(&|settings| settings.tls.ca_file = file(&server.ca_file()));
    assert!(no_certificate.publish_batch(&[numbered(2, None)]).await.unwrap_err().is_unavailable());
    let unknown_authority = publisher(&|settings| {
        settings.tls.cert_file = file(&certificate);
        settings.tls.key_file = file(&key);
    });
    let error = unknown_authority.publish_batch(&[numbered(3, None)]).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("ertificate"), "{error}");
    let no_file = publisher(&|settings| settings.tls.ca_file = Some("/no/such/file".into()));
    let error = no_file.publish_batch(&[numbered(4, None)]).await.unwrap_err();
    assert!(error.to_string().contains("ca_file `/no/such/file`"), "{error}");
}

#[tokio::test]
async fn a_silent_server_of_a_cluster_costs_only_its_own_timeout() {
    let Some((server, _)) = served(Plan::nats(), Config::default(), |_, _| {}).await else { return };
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    // The client tries the servers in any order.
    let publishing = (0..6).map(async |number| {
        let url = format!("nats://127.0.0.1:{port},{}", server.url());
        let mut settings = NatsSettings::new(&url, "orders.{type}".parse().unwrap());
        settings.connect_timeout = Duration::from_secs(10);
        Nats::new("nats", settings).unwrap().publish_batch(&[numbered(number, None)]).await.unwrap();
    });
    join_all(publishing).await;
    assert_eq!(messages(&server).await, 6);
}

#[tokio::test]
async fn a_token_authenticates() {
    let plan = Plan::nats().config("authorization { token: \"correcthorse\" }");
    if !plan.is_here() {
        return;
    }
    let server = plan.start();
    let mut settings = NatsSettings::new(&server.url(), "orders".parse().unwrap());
    assert!(Nats::new("nats", settings.clone()).unwrap().health().await.is_err());
    settings.token = Some("correcthorse".into());
    let in_url = server.url().replace("nats://", "nats://correcthorse@");
    for settings in [settings, NatsSettings::new(&in_url, "orders".parse().unwrap())] {
        // Authenticated.
        let is_expected = |reason: &str| reason.contains("no stream accepts the subject `orders`");
        wait_until_unhealthy(&Nats::new("nats", settings).unwrap(), is_expected).await;
    }
}

/// Creates a NATS JWT, signed by the issuer's key.
fn jwt(issuer: &nkeys::KeyPair, subject: &nkeys::KeyPair, nats: &serde_json::Value) -> String {
    let encode = |bytes: &[u8]| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes);
    let claims = serde_json::json!({
        "jti": "TEST", "iat": 1_700_000_000, "iss": issuer.public_key(), "name": "test",
        "sub": subject.public_key(), "nats": nats,
    });
    let header = encode(br#"{"typ":"JWT","alg":"ed25519-nkey"}"#);
    let signed = format!("{header}.{}", encode(claims.to_string().as_bytes()));
    let signature = encode(&issuer.sign(signed.as_bytes()).unwrap());
    format!("{signed}.{signature}")
}

#[tokio::test]
async fn a_credentials_file_authenticates_and_is_read_again() {
    if !Plan::nats().is_here() {
        return;
    }
    let (operator, account) = (nkeys::KeyPair::new_operator(), nkeys::KeyPair::new_account());
    let (user, other_user) = (nkeys::KeyPair::new_user(), nkeys::KeyPair::new_user());
    let of = |kind: &str| serde_json::json!({"type": kind, "version": 2});
    let limits = serde_json::json!({"subs": -1, "data": -1, "payload": -1, "conn": -1, "leaf": -1});
    let of_account = serde_json::json!({"type": "account", "version": 2, "limits": limits});
    let of_user = serde_json::json!({"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1});
    let server = Plan::nats()
        .config(&format!("operator: {}", jwt(&operator, &operator, &of("operator"))))
        .config(&format!("system_account: {}", account.public_key()))
        .config("resolver: MEMORY")
        .config(&format!(
            "resolver_preload: {{ {}: {} }}",
            account.public_key(),
            jwt(&operator, &account, &of_account)
        ))
        .start();
    let file = server.folder().join("relay.creds");
    let write = |key: &nkeys::KeyPair| {
        let (jwt, seed) = (jwt(&account, &user, &of_user), key.seed().unwrap());
        let text = format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        );
        std::fs::write(&file, text).unwrap();
    };
    let mut settings = NatsSettings::new(&server.url(), "orders".parse().unwrap());
    assert!(Nats::new("nats", settings.clone()).unwrap().health().await.is_err());
    settings.credentials_file = Some(file.to_str().unwrap().into());
    let publisher = Nats::new("nats", settings).unwrap();
    let error = publisher.publish_batch(&[numbered(1, None)]).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("relay.creds"), "{error}");
    write(&other_user);
    let error = publisher.publish_batch(&[numbered(1, None)]).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("authorization"), "{error}");
    assert!(!format!("{error:?}").contains(&other_user.seed().unwrap()));
    write(&user);
    // Authenticated, in an account without JetStream.
    wait_until_unhealthy(&publisher, |reason| !reason.contains("authorization")).await;
}

#[tokio::test]
async fn a_publisher_whose_only_subject_is_denied_is_unavailable_at_once() {
    let users = "authorization { users: [
        {user: ada, password: secret, permissions: {publish: {deny: \"orders.forbidden\"}}} ] }";
    let plan = Plan::nats().config(users);
    if !plan.is_here() {
        return;
    }
    let server = plan.start();
    let options = ConnectOptions::with_user_and_password("ada".to_owned(), "secret".to_owned());
    let jetstream = jetstream(&server, options).await;
    let stream = Config { name: "orders".into(), subjects: vec!["orders.>".into()], ..Config::default() };
    jetstream.create_stream(stream).await.unwrap();
    let settings = NatsSettings::new(&server.url_as("ada", "secret"), "orders.forbidden".parse().unwrap());
    let ack_timeout = settings.ack_timeout;
    let publisher = Nats::new("nats", settings).unwrap();
    let started = Instant::now();
    let error = publisher.publish_batch(&[numbered(0, None), numbered(1, Some("k"))]).await.unwrap_err();
    assert!(error.is_unavailable(), "no event is to blame: {error}");
    assert!(error.to_string().to_lowercase().contains("permissions violation"), "{error}");
    assert!(started.elapsed() < ack_timeout, "does not wait for the acknowledgement timeout");
    assert_eq!(
        (error.fate(0), error.fate(1)),
        (Some(EventResult::NotAttempted), Some(EventResult::NotAttempted))
    );
}

#[tokio::test]
async fn a_missing_stream_of_one_tenant_is_the_failure_of_its_events() {
    let stream = Config::default();
    let Some((_server, publisher)) = served(Plan::nats(), stream, |_, settings| {
        settings.subject = "{header:tenant}.{type}".parse().unwrap();
    })
    .await
    else {
        return;
    };
    let of = |tenant: &str| {
        let event = Event::new("placed").header("tenant", tenant).json(&1).build().unwrap();
        Outgoing::new(event)
    };
    wait_until_healthy(&publisher).await;
    let error = publisher.publish_batch(&[of("orders"), of("nowhere"), of("orders")]).await.unwrap_err();
    assert!(!error.is_unavailable(), "{error}");
    assert_eq!((error.fate(0), error.fate(2)), (Some(EventResult::Published), Some(EventResult::Published)));
    let Some(EventResult::Failed(failure)) = error.fate(1) else { panic!("{error}") };
    assert!(failure.to_string().contains("no stream accepts the subject `nowhere.placed`"), "{failure}");
    wait_until_healthy(&publisher).await;
}

#[tokio::test]
async fn a_denied_subject_is_named() {
    let users = "authorization { users: [
        {user: ada, password: secret, permissions: {publish: {deny: \"orders.forbidden\"}}} ] }";
    let plan = Plan::nats().config(users);
    if !plan.is_here() {
        return;
    }
    let server = plan.start();
    let options = ConnectOptions::with_user_and_password("ada".to_owned(), "secret".to_owned());
    let jetstream = jetstream(&server, options).await;
    let stream = Config { name: "orders".into(), subjects: vec!["orders.>".into()], ..Config::default() };
    jetstream.create_stream(stream).await.unwrap();
    let settings = NatsSettings::new(&server.url_as("ada", "secret"), "orders.{type}".parse().unwrap());
    let publisher = Nats::new("nats", settings).unwrap();
    let event = |kind: &str| Outgoing::new(Event::new(kind).json(&1).build().unwrap());
    let error = publisher.publish_batch(&[event("forbidden"), event("allowed")]).await.unwrap_err();
    assert!(!error.is_unavailable() && error.to_string().contains("orders.forbidden"), "{error}");
    assert_eq!(error.fate(1), Some(EventResult::Published));
}

#[tokio::test]
async fn an_event_with_an_invalid_subject_is_dead_and_the_others_arrive() {
    let Some((server, publisher)) = served(Plan::nats(), Config::default(), |_, _| {}).await else { return };
    let event = |kind: &str| Outgoing::new(Event::new(kind).json(&1).build().unwrap());
    let error = publisher.publish_batch(&[event("a..b"), event("fine"), event("a*")]).await.unwrap_err();
    for (index, expected) in [(0, "`orders.a..b`"), (2, "`orders.a*`")] {
        let Some(EventResult::Failed(failure)) = error.fate(index) else { panic!("{:?}", error.fate(index)) };
        assert!(is_dead(&failure) && failure.to_string().contains(expected), "{failure}");
    }
    assert_eq!((error.fate(1), messages(&server).await), (Some(EventResult::Published), 1));
}

#[tokio::test]
async fn an_event_that_is_too_large_for_the_stream_is_dead() {
    let stream = Config { max_message_size: 1_000, ..Config::default() };
    let Some((_server, publisher)) = served(Plan::nats(), stream, |_, _| {}).await else { return };
    let error = publisher.publish_batch(&[of_size(2_000, None), numbered(1, None)]).await.unwrap_err();
    let Some(EventResult::Failed(failure)) = error.fate(0) else { panic!("{:?}", error.fate(0)) };
    assert!(is_dead(&failure) && failure.to_string().contains("bytes"), "{failure}");
    assert_eq!(error.fate(1), Some(EventResult::Published));
}

#[tokio::test]
async fn a_full_stream_is_retried() {
    let stream = Config { max_messages: 1, discard: DiscardPolicy::New, ..Config::default() };
    let Some((_server, publisher)) = served(Plan::nats(), stream, |_, _| {}).await else { return };
    publisher.publish_batch(&[numbered(1, None)]).await.unwrap();
    let error = publisher.publish_batch(&[numbered(2, None)]).await.unwrap_err();
    let Some(EventResult::Failed(failure)) = error.fate(0) else { panic!("{:?}", error.fate(0)) };
    assert!(!is_dead(&failure) && failure.to_string().contains("maximum messages exceeded"), "{failure}");
}
