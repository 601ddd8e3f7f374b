//! Webhooks: each event is a signed HTTP request to a checked address.

mod address;
mod client;
mod health;
#[cfg(test)]
mod proptests;
mod request;
mod response;
mod settings;
mod signature;
mod target;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use chrono::Utc;
use futures_util::stream::{self, StreamExt as _};
use outbox::{Failure, Outgoing, PublishError, Publisher, Unavailable};
use reqwest::{Client, Request};

use self::address::AddressPolicy;
use self::client::{cause, client, drain, printable};
use self::health::ReceiverHealth;
use self::request::RequestWriter;
use self::response::RequestOutcome;
pub use self::settings::WebhookSettings;
pub use self::signature::{SigningSecretError, Unverified, verify_webhook};
use self::target::Target;
use crate::availability::Availability;
use crate::{Duplicates, Guarantees, KeyedBatches, Order, PublisherSettingsError};

/// Maximum time for reading the rest of a response.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time of a batch. No further events are sent after it; the remaining events come with the
/// next batch. The relay's timeout for a batch is as long, and after it the relay would not learn
/// which events were published.
const MAX_BATCH_TIME: Duration = Duration::from_secs(10);
/// Timeout of a connection probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Sends each event as an HTTP `POST`. An event is published when the response is 2xx.
///
/// ```
/// use outbox::Topic;
/// use outbox_transports::{Webhook, WebhookSettings};
///
/// let mut settings = WebhookSettings::new("https://hooks.example.com/orders");
/// settings.secrets = vec!["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into()];
/// let pair = Topic::new("orders").to(Webhook::new("hooks", settings)?);
/// # Ok::<(), outbox_transports::PublisherSettingsError>(())
/// ```
///
/// Requests have the headers `webhook-id` (the event's id), `webhook-timestamp` and, if there is a
/// secret, `webhook-signature`, as specified by Standard Webhooks. Receivers check them with
/// [`verify_webhook`].
///
/// | response | result |
/// | --- | --- |
/// | 2xx | published |
/// | 410, 413, 415, 422 | dead: the receiver is gone permanently, or can never accept this event |
/// | 429 with `Retry-After` | retried after that time, at most one hour |
/// | 401, 403, 502, 503, 504 | if the receiver accepts other events, or if the URL depends on the event: retried by the retry policy or after `Retry-After`; otherwise the receiver is unavailable or refuses the credentials, and no attempt of an event is counted |
/// | 3xx | retried by the retry policy; redirects are not followed |
/// | any other | retried by the retry policy; also 404, since a deployment may be in progress |
/// | no response in time, or the connection breaks, and a new connection succeeds | retried by the retry policy: the receiver may have accepted the event |
/// | no connection: DNS, refused, TLS, or timeout | the receiver is unavailable |
///
/// Requests use https and go to public addresses; every other host must be in
/// [`allow`](WebhookSettings::allow). The client connects to the address that was checked, and
/// ignores proxy settings of the environment. The first 512 bytes of an unsuccessful response are
/// kept as the [detail](Failure::with_detail) of the failure, for users who may see payloads.
///
/// Event headers that HTTP itself uses (`host`, `content-length`, `connection`, …) are omitted. So
/// are headers by which a receiver or a proxy identifies the caller or interprets the request:
/// `authorization`, `cookie`, `user-agent`, `content-encoding`, `forwarded`, `via`,
/// `x-forwarded-*`, `x-real-ip` and `x-http-method-override`; only the settings may set these. A
/// header that is not valid in HTTP makes the event dead.
///
/// The signature covers id, timestamp and body, as specified by Standard Webhooks. No other header
/// is signed: a receiver that acts on `outbox-type` or `outbox-tenant-id` relies on TLS, or reads
/// the value from a signed body ([`Format::CloudeventsStructured`](crate::Format)).
pub struct Webhook {
    name: String,
    client: Client,
    policy: Arc<AddressPolicy>,
    target: Target,
    writer: RequestWriter,
    /// Timeout of a request, including the connection.
    request_timeout: Duration,
    concurrency: usize,
    max_batch_time: Duration,
    availability: Availability,
    health: ReceiverHealth,
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook")
            .field("name", &self.name)
            .field("to", &self.target.origin)
            .finish_non_exhaustive()
    }
}

impl Webhook {
    /// Delivery guarantees of webhooks.
    pub const GUARANTEES: Guarantees = Guarantees {
        order: Order::PerKey,
        duplicates: Duplicates::Delivered,
        confirmed: "the receiver has answered 2xx",
    };

    /// Creates a publisher called `name`. Checks the settings; does not connect yet.
    #[expect(clippy::needless_pass_by_value, reason = "all transports have the same constructor")]
    pub fn new(name: impl Into<String>, settings: WebhookSettings) -> Result<Self, PublisherSettingsError> {
        let policy = Arc::new(AddressPolicy::new(&settings.allow)?);
        let target = Target::new(settings.url.expose(), &policy)?;
        if settings.concurrency == 0 {
            return Err(PublisherSettingsError::value("concurrency", "must be at least 1"));
        }
        for (setting, duration) in
            [("timeout", settings.timeout), ("connect_timeout", settings.connect_timeout)]
        {
            if duration.is_zero() {
                return Err(PublisherSettingsError::value(setting, "must be greater than zero"));
            }
        }
        let client = client(&settings, policy.clone())?;
        Ok(Self {
            name: name.into(),
            client,
            policy,
            target,
            writer: RequestWriter::new(&settings)?,
            request_timeout: settings.connect_timeout.saturating_add(settings.timeout),
            concurrency: settings.concurrency,
            max_batch_time: MAX_BATCH_TIME,
            availability: Availability::default(),
            health: ReceiverHealth::default(),
        })
    }

    /// Sends one event, unless the batch was `stopped` in the meantime.
    async fn send(&self, event: &Outgoing, stopped: &AtomicBool) -> RequestOutcome {
        if stopped.load(Ordering::Relaxed) {
            return RequestOutcome::NotAttempted;
        }
        let request =
            self.target.url_for(event).and_then(|url| self.writer.request(&self.client, url, event));
        let outcome = match request {
            Ok(request) => self.execute(request).await,
            Err(failure) => RequestOutcome::Failed(failure),
        };
        match &outcome {
            RequestOutcome::Published => {
                self.availability.record_success();
                self.health.record_success();
            }
            RequestOutcome::Unavailable(reason) => {
                self.availability.record_outage(reason);
                stopped.store(true, Ordering::Relaxed);
            }
            RequestOutcome::Failed(_) | RequestOutcome::Refused(_) | RequestOutcome::NotAttempted => {}
        }
        outcome
    }

    /// Classifies the refusals of a batch after all of it was tried: as failures of the events if
    /// the receiver accepts others, otherwise as an outage, whose reason is returned.
    fn classify_refusals(
        &self,
        events: &[Outgoing],
        refused: Vec<(usize, Failure)>,
        start: Instant,
        batches: &mut KeyedBatches<'_>,
    ) -> Option<String> {
        let (first, reason) = refused.first().map(|(index, failure)| (*index, failure.to_string()))?;
        // With several URLs, a URL that refuses everything must not block the others.
        if self.target.varies_by_event || self.health.succeeded_since(start) {
            for (index, failure) in refused {
                batches.failed(index, failure);
            }
            return None;
        }
        if self.health.blame_event(events[first].id().as_str()) {
            let (index, failure) = refused.into_iter().next()?;
            batches.failed(index, failure);
            // No other event was tried: the next one may be accepted.
            if events.len() == 1 {
                return None;
            }
        }
        self.availability.record_outage(&reason);
        Some(reason)
    }

    /// The event's failure, unless the receiver is unreachable.
    async fn no_response(&self, why: &str) -> RequestOutcome {
        self.availability.invalidate();
        if let Err(unavailable) = self.probe().await {
            return RequestOutcome::Unavailable(unavailable.reason().to_owned());
        }
        let origin = &self.target.origin;
        RequestOutcome::Failed(Failure::retry(format!(
            "no response from {origin}{why}; the receiver may have accepted the event"
        )))
    }

    /// Checks that the receiver accepts connections.
    async fn probe(&self) -> Result<(), Unavailable> {
        let connecting = async {
            let addresses = self.policy.resolve_allowed(&self.target.host).await?;
            let addresses: Vec<_> = addresses.into_iter().map(|ip| (ip, self.target.port).into()).collect();
            let connected = tokio::net::TcpStream::connect(addresses.as_slice()).await;
            connected.map(drop).map_err(|error| {
                Unavailable::new(format_args!("no connection to {}: {error}", self.target.origin))
            })
        };
        let timed_out = |_| {
            let seconds = PROBE_TIMEOUT.as_secs();
            Err(Unavailable::new(format_args!("no connection to {} in {seconds} s", self.target.origin)))
        };
        tokio::time::timeout(PROBE_TIMEOUT, connecting).await.unwrap_or_else(timed_out)
    }

    async fn execute(&self, request: Request) -> RequestOutcome {
        let (origin, url) = (&self.target.origin, request.url().clone());
        match tokio::time::timeout(self.request_timeout, self.client.execute(request)).await {
            Ok(Ok(response)) => {
                let outcome =
                    response::classify(response.status(), response.headers(), &url, origin, Utc::now());
                let mut excerpt = Vec::new();
                // The result is ignored: the outcome is already known.
                let _ = tokio::time::timeout(DRAIN_TIMEOUT, drain(response, &mut excerpt)).await;
                let detailed = |failure: Failure| match printable(&excerpt) {
                    Some(text) => failure.with_detail(format!("the response begins with: {text}")),
                    None => failure,
                };
                match outcome {
                    RequestOutcome::Failed(failure) => RequestOutcome::Failed(detailed(failure)),
                    RequestOutcome::Refused(failure) => RequestOutcome::Refused(detailed(failure)),
                    outcome => outcome,
                }
            }
            Ok(Err(error)) if error.is_connect() => {
                RequestOutcome::Unavailable(format!("no connection to {origin}: {}", cause(&error)))
            }
            Ok(Err(error)) => self.no_response(&format!(": {}", cause(&error))).await,
            Err(_) => self.no_response(&format!(" in {} s", self.request_timeout.as_secs_f32())).await,
        }
    }
}

#[async_trait]
impl Publisher for Webhook {
    fn name(&self) -> &str {
        &self.name
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        let start = Instant::now();
        let stopped = AtomicBool::new(false);
        let mut batches = KeyedBatches::new(events);
        let (mut outage, mut too_slow, mut skipped) = (None, false, false);
        let mut refused = Vec::new();
        while let Some(sub_batch) = batches.next() {
            let stopped = &stopped;
            let sent = stream::iter(sub_batch)
                .map(|index| async move { (index, self.send(&events[index], stopped).await) })
                .buffer_unordered(self.concurrency);
            let mut sent = std::pin::pin!(sent);
            // Awaits every started request, even after an outage: the receiver may accept it.
            while let Some((index, outcome)) = sent.next().await {
                match outcome {
                    RequestOutcome::Published => batches.published(index),
                    RequestOutcome::Failed(failure) => batches.failed(index, failure),
                    RequestOutcome::Refused(failure) => refused.push((index, failure)),
                    RequestOutcome::Unavailable(reason) => outage = Some(reason),
                    RequestOutcome::NotAttempted => skipped = true,
                }
                if start.elapsed() > self.max_batch_time && !stopped.swap(true, Ordering::Relaxed) {
                    too_slow = true;
                }
            }
        }
        // In batch order.
        refused.sort_by_key(|(index, _)| *index);
        let refused = self.classify_refusals(events, refused, start, &mut batches);
        match outage.or(refused) {
            Some(reason) => batches.abort(reason),
            None if too_slow && skipped => {
                batches.abort(format!("{} is slow: the rest of the batch is sent later", self.target.origin))
            }
            None => batches.finish(),
        }
    }

    async fn health(&self) -> Result<(), Unavailable> {
        if let Some(reason) = self.availability.paused() {
            return Err(Unavailable::new(reason));
        }
        if self.availability.is_recently_up() {
            return Ok(());
        }
        self.probe().await.inspect_err(|unavailable| {
            self.availability.warn_unavailable(&self.name, unavailable.reason());
        })
    }
}

#[cfg(test)]
mod tests {
    use outbox::{Event, EventResult};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn a_batch_that_takes_too_long_is_ended_and_keeps_its_published_events() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut request = [0; 10_000];
            while connection.read(&mut request).await.is_ok_and(|bytes| bytes > 0) {
                tokio::time::sleep(Duration::from_millis(60)).await;
                connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            }
        });
        let mut settings = WebhookSettings::new(format!("http://{address}/").as_str());
        settings.allow = vec!["127.0.0.1".into()];
        let mut webhook = Webhook::new("hooks", settings).unwrap();
        webhook.max_batch_time = Duration::from_millis(50);
        let event = || Outgoing::new(Event::new("e").ordering_key("k").json(&1).build().unwrap());
        let error = webhook.publish_batch(&[event(), event()]).await.unwrap_err();
        assert!(error.is_unavailable(), "no event is to blame: {error}");
        assert_eq!(
            (error.fate(0), error.fate(1)),
            (Some(EventResult::Published), Some(EventResult::NotAttempted))
        );
        // The limit stops further requests, not the last one.
        webhook.publish_batch(&[event()]).await.unwrap();
    }
}
