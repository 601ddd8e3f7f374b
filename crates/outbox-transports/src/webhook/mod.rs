//! Webhooks: every event is an HTTP request, signed, to an address that was checked.

mod address;
mod answer;
#[cfg(test)]
mod any_text;
mod client;
mod health;
mod request;
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

use self::address::Gate;
use self::answer::Verdict;
use self::client::{cause, client, drain, printable};
use self::health::Health;
use self::request::Writer;
pub use self::settings::WebhookSettings;
pub use self::signature::{Unverified, verify_webhook};
use self::target::Target;
use crate::standing::Standing;
use crate::{Order, Promises, Repeats, Waves};

/// How long reading the rest of an answer may take.
const DRAINING: Duration = Duration::from_secs(1);
/// When a batch is this old, no more of it is sent: the rest comes with the next one. Whoever has it published gives the whole of it
/// so much time, and would otherwise not learn what was published.
const LONGEST_BATCH: Duration = Duration::from_secs(10);
/// How long a look at whether the receiver is there may take.
const LOOK: Duration = Duration::from_secs(2);

/// Sends every event as an HTTP `POST` of its own. An event is published when the answer is 2xx.
///
/// ```
/// use outbox::Topic;
/// use outbox_transports::{Webhook, WebhookSettings};
///
/// let mut settings = WebhookSettings::new("https://hooks.example.com/orders");
/// settings.secrets = vec!["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into()];
/// let pair = Topic::new("orders").to(Webhook::new("hooks", settings)?);
/// # Ok::<(), String>(())
/// ```
///
/// Requests have the headers `webhook-id` (the event's id), `webhook-timestamp` and, if there is a secret, `webhook-signature`, in
/// the manner of Standard Webhooks; receivers check them with [`verify_webhook`].
///
/// | answer | what it means |
/// | --- | --- |
/// | 2xx | published |
/// | 410, 413, 415, 422 | dead: the receiver is gone for good, or can never take this event |
/// | 429 with `Retry-After` | tried again after that, an hour at most |
/// | 401, 403, 502, 503, 504 | the event is tried again by the retry policy, or after `Retry-After`, if the receiver takes other events, or if the URL depends on the event; else the receiver is unavailable, or does not know us, and no event is to blame |
/// | 3xx | tried again by the retry policy; redirects are not followed |
/// | any other | tried again by the retry policy: 404 too, a deployment may be under way |
/// | none in time, or the connection breaks, and another can be made | tried again by the retry policy: it may have been taken |
/// | no connection: DNS, refused, TLS, or not in time | the receiver is unavailable |
///
/// It goes by https, to public addresses: every other host must be [allowed](WebhookSettings::allow). The address that was checked is
/// the one that is connected to, and proxies of the environment are not used. The first 512 bytes of an answer that is no
/// success are kept as the [detail](Failure::with_detail) of the failure, for those who may see payloads.
///
/// HTTP has uses of its own for some headers (`host`, `content-length`, `connection`, …): an event's own headers of these names
/// are left out. So are those by which a receiver, or a proxy before it, tells who is asking and how to read the request:
/// `authorization`, `cookie`, `user-agent`, `content-encoding`, `forwarded`, `via`, `x-forwarded-*`, `x-real-ip` and
/// `x-http-method-override`; the settings may set them. A header that HTTP cannot hold makes the event dead.
///
/// The signature covers id, timestamp and body, as Standard Webhooks has it. No other header is signed: a receiver that
/// acts upon `outbox-type` or `outbox-tenant-id` trusts TLS for them, or reads the same from a signed body
/// ([`Format::CloudeventsStructured`](crate::Format)).
pub struct Webhook {
    name: String,
    client: Client,
    gate: Arc<Gate>,
    target: Target,
    writer: Writer,
    /// For an answer, that a connection is there first included.
    patience: Duration,
    concurrency: usize,
    longest_batch: Duration,
    standing: Standing,
    health: Health,
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
    /// What it promises.
    pub const PROMISES: Promises =
        Promises { order: Order::PerKey, repeats: Repeats::Seen, confirmed: "the receiver has answered 2xx" };

    /// Called `name`, with these settings. Checks them, and connects to nobody yet.
    #[expect(clippy::needless_pass_by_value, reason = "all transports are made alike")]
    pub fn new(name: impl Into<String>, settings: WebhookSettings) -> Result<Self, String> {
        let gate = Arc::new(Gate::new(&settings.allow)?);
        let target = Target::new(settings.url.expose(), &gate)?;
        if settings.concurrency == 0 {
            return Err("concurrency: at least one request must be under way at once".to_owned());
        }
        for (name, duration) in [("timeout", settings.timeout), ("connect_timeout", settings.connect_timeout)]
        {
            if duration.is_zero() {
                return Err(format!("{name}: it must be more than nothing"));
            }
        }
        let client = client(&settings, gate.clone())?;
        Ok(Self {
            name: name.into(),
            client,
            gate,
            target,
            writer: Writer::new(&settings)?,
            patience: settings.connect_timeout.saturating_add(settings.timeout),
            concurrency: settings.concurrency,
            longest_batch: LONGEST_BATCH,
            standing: Standing::default(),
            health: Health::default(),
        })
    }

    /// Sends one event, unless the batch was `cut` off meanwhile.
    async fn send(&self, event: &Outgoing, cut: &AtomicBool) -> Verdict {
        if cut.load(Ordering::Relaxed) {
            return Verdict::Untried;
        }
        let request = self.target.of(event).and_then(|url| self.writer.request(&self.client, url, event));
        let verdict = match request {
            Ok(request) => self.ask(request).await,
            Err(failure) => Verdict::Failed(failure),
        };
        match &verdict {
            Verdict::Published => {
                self.standing.took_one();
                self.health.took_one();
            }
            Verdict::Unavailable(reason) => {
                self.standing.was_away(reason);
                cut.store(true, Ordering::Relaxed);
            }
            Verdict::Failed(_) | Verdict::Refused(_) | Verdict::Untried => {}
        }
        verdict
    }

    /// Decides what the refusals of a batch mean, now that the whole of it was tried: events' failures if the
    /// receiver takes others, else an outage, whose reason is returned.
    fn judge(
        &self,
        events: &[Outgoing],
        refused: Vec<(usize, Failure)>,
        start: Instant,
        waves: &mut Waves<'_>,
    ) -> Option<String> {
        let (first, reason) = refused.first().map(|(index, failure)| (*index, failure.to_string()))?;
        // Of several URLs one that takes nothing must not stand in the way of the others.
        if self.target.has_many || self.health.took_since(start) {
            for (index, failure) in refused {
                waves.failed(index, failure);
            }
            return None;
        }
        if self.health.is_to_blame(events[first].id().as_str()) {
            let (index, failure) = refused.into_iter().next()?;
            waves.failed(index, failure);
            // Nothing else was tried: another event may fare better.
            if events.len() == 1 {
                return None;
            }
        }
        self.standing.was_away(&reason);
        Some(reason)
    }

    /// The event's failure, unless the receiver is gone.
    async fn no_answer(&self, why: &str) -> Verdict {
        self.standing.is_in_doubt();
        if let Err(reason) = self.look().await {
            return Verdict::Unavailable(reason);
        }
        let origin = &self.target.origin;
        Verdict::Failed(Failure::retry(format!("no answer from {origin}{why}; it may have taken the event")))
    }

    /// Whether somebody is there to connect to.
    async fn look(&self) -> Result<(), String> {
        let connecting = async {
            let addresses = self.gate.addresses(&self.target.host).await?;
            let addresses: Vec<_> = addresses.into_iter().map(|ip| (ip, self.target.port).into()).collect();
            let connected = tokio::net::TcpStream::connect(addresses.as_slice()).await;
            connected.map(drop).map_err(|error| format!("no connection to {}: {error}", self.target.origin))
        };
        let late = |_| Err(format!("no connection to {} in {} s", self.target.origin, LOOK.as_secs()));
        tokio::time::timeout(LOOK, connecting).await.unwrap_or_else(late)
    }

    async fn ask(&self, request: Request) -> Verdict {
        let (origin, url) = (&self.target.origin, request.url().clone());
        match tokio::time::timeout(self.patience, self.client.execute(request)).await {
            Ok(Ok(response)) => {
                let verdict = answer::read(response.status(), response.headers(), &url, origin, Utc::now());
                let mut excerpt = Vec::new();
                // However it ends: what the answer means is known already.
                let _ = tokio::time::timeout(DRAINING, drain(response, &mut excerpt)).await;
                let detailed = |failure: Failure| match printable(&excerpt) {
                    Some(text) => failure.with_detail(format!("the answer begins with: {text}")),
                    None => failure,
                };
                match verdict {
                    Verdict::Failed(failure) => Verdict::Failed(detailed(failure)),
                    Verdict::Refused(failure) => Verdict::Refused(detailed(failure)),
                    verdict => verdict,
                }
            }
            Ok(Err(error)) if error.is_connect() => {
                Verdict::Unavailable(format!("no connection to {origin}: {}", cause(&error)))
            }
            Ok(Err(error)) => self.no_answer(&format!(": {}", cause(&error))).await,
            Err(_) => self.no_answer(&format!(" in {} s", self.patience.as_secs_f32())).await,
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
        let cut = AtomicBool::new(false);
        let mut waves = Waves::new(events);
        let (mut away, mut slow, mut left) = (None, false, false);
        let mut refused = Vec::new();
        while let Some(wave) = waves.next() {
            let cut = &cut;
            let sent = stream::iter(wave)
                .map(|index| async move { (index, self.send(&events[index], cut).await) })
                .buffer_unordered(self.concurrency);
            let mut sent = std::pin::pin!(sent);
            // Each to its end, even after an outage: what is under way may well be taken.
            while let Some((index, verdict)) = sent.next().await {
                match verdict {
                    Verdict::Published => waves.published(index),
                    Verdict::Failed(failure) => waves.failed(index, failure),
                    Verdict::Refused(failure) => refused.push((index, failure)),
                    Verdict::Unavailable(reason) => away = Some(reason),
                    Verdict::Untried => left = true,
                }
                if start.elapsed() > self.longest_batch && !cut.swap(true, Ordering::Relaxed) {
                    slow = true;
                }
            }
        }
        // In the order of the batch.
        refused.sort_by_key(|(index, _)| *index);
        let refused = self.judge(events, refused, start, &mut waves);
        match away.or(refused) {
            Some(reason) => waves.cut_off(reason),
            None if slow && left => {
                waves.cut_off(format!("{} is slow: the rest of the batch waits", self.target.origin))
            }
            None => waves.end(),
        }
    }

    async fn health(&self) -> Result<(), Unavailable> {
        if let Some(reason) = self.standing.paused() {
            return Err(Unavailable::new(reason));
        }
        if self.standing.is_fresh() {
            return Ok(());
        }
        self.look().await.map_err(|reason| {
            self.standing.is_missing(&self.name, &reason);
            Unavailable::new(reason)
        })
    }
}

#[cfg(test)]
mod tests {
    use outbox::{Event, Fate};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn a_batch_that_takes_too_long_is_cut_off_and_keeps_what_was_published() {
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
        webhook.longest_batch = Duration::from_millis(50);
        let event = || Outgoing::new(Event::new("e").ordering_key("k").json(&1).build().unwrap());
        let error = webhook.publish_batch(&[event(), event()]).await.unwrap_err();
        assert!(error.is_unavailable(), "no event is to blame: {error}");
        assert_eq!((error.fate(0), error.fate(1)), (Some(Fate::Published), Some(Fate::Untried)));
        // Its last event may take as long as it takes.
        webhook.publish_batch(&[event()]).await.unwrap();
    }
}
