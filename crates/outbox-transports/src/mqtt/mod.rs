//! MQTT 5: events as messages with QoS 1, each confirmed by the server.

#[cfg(test)]
mod any_text;
mod flight;
mod flights;
mod line;
mod parcel;
mod server;
mod settings;

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use async_trait::async_trait;
use outbox::{Outgoing, PublishError, Publisher, Unavailable};
use tokio::sync::RwLock;

use self::flight::send;
use self::flights::{Answer, Loss, Refusal};
use self::line::{Dialer, Line};
use self::parcel::Parcel;
use self::server::Server;
pub use self::settings::MqttSettings;
use crate::link::Link;
use crate::{Encoder, Order, Promises, Repeats, Waves};

/// How long it may take to find out whether there is a server.
const LOOK: Duration = Duration::from_millis(1500);

/// The client asks at least so much.
const LEAST_KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Publishes to an MQTT 5 server. Connects when it is first needed, and anew when the connection is lost.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use outbox::Topic;
/// use outbox_transports::{Mqtt, MqttSettings};
///
/// let settings = MqttSettings::new("mqtt://localhost", "orders/{type}".parse()?);
/// let pair = Topic::new("orders").required_tags(["order_id"]).to(Mqtt::new("mosquitto", settings)?);
/// assert_eq!(pair.id().publisher(), "mosquitto");
/// # Ok(()) }
/// ```
///
/// The event's id is a user property. An event is published when the server has acknowledged it, also if nobody has
/// subscribed to its topic.
pub struct Mqtt {
    name: String,
    settings: MqttSettings,
    encoder: Encoder,
    link: Link<Dialer>,
    /// Shared by all who publish; held alone by the one who finds out which message the server does not stand.
    alone: RwLock<()>,
}

impl Mqtt {
    /// What MQTT promises.
    pub const PROMISES: Promises = Promises {
        order: Order::PerKey,
        repeats: Repeats::Seen,
        confirmed: "the server has taken charge of the message (QoS 1), for those who have subscribed",
    };

    /// A publisher of this name. Says what is wrong with the settings; does not connect yet.
    pub fn new(name: impl Into<String>, settings: MqttSettings) -> Result<Self, String> {
        let server = Server::parse(&settings)?;
        if settings.tls.is_used() && !server.encrypted {
            return Err("tls: the url is mqtt://, which has none; write mqtts://".to_owned());
        }
        settings.tls.client_config().map_err(|mistake| format!("tls: {mistake}"))?;
        if let Some(topic) = settings.topic.fixed() {
            parcel::check_topic(topic).map_err(|mistake| format!("topic: {mistake}"))?;
        }
        if settings.keep_alive < LEAST_KEEP_ALIVE {
            return Err("keep_alive: use at least 5s".to_owned());
        }
        let client_id = match &settings.client_id {
            Some(id) if id.as_str().is_empty() => {
                return Err("client_id: leave it out for a new one".to_owned());
            }
            Some(id) => id.as_str().to_owned(),
            None => new_client_id(),
        };
        let dialer = Dialer {
            server,
            tls: settings.tls.clone(),
            client_id,
            timeout: settings.connect_timeout,
            keep_alive: settings.keep_alive,
            retain: settings.retain,
        };
        let encoder = Encoder::new(settings.format, settings.source.as_str()).prefix("");
        Ok(Self { name: name.into(), settings, encoder, link: Link::new(dialer), alone: RwLock::new(()) })
    }

    /// Sends one wave. An error says why there is no going on.
    async fn deliver(&self, line: &Line, parcels: &[Numbered], waves: &mut Waves<'_>) -> Result<(), String> {
        let all: Vec<&Numbered> = parcels.iter().collect();
        let suspects = {
            let _with_others = self.alone.read().await;
            self.attempt(line, &all, waves).await?
        };
        if suspects.is_empty() {
            return Ok(());
        }
        // The server ended the connection, perhaps over one of them, and did not say over which. If it is there again at once,
        // halves of them are sent until those are alone that it does not stand.
        let _alone = self.alone.write().await;
        let mut groups = vec![without_reasons(suspects)];
        while let Some(group) = groups.pop() {
            let line = self.link.get().await?;
            let suspects = self.attempt(&line, &group, waves).await?;
            if group.len() == 1 && suspects.len() == 1 {
                // Once more, on a connection that nobody had before it.
                let line = self.link.get().await?;
                for (numbered, refusal) in self.attempt(&line, &group, waves).await? {
                    self.refuse(numbered, &refusal, waves)?;
                }
            } else if !suspects.is_empty() {
                let mut first = without_reasons(suspects);
                let second = first.split_off(first.len().div_ceil(2));
                groups.extend([second, first]);
            }
        }
        Ok(())
    }

    /// Sends these at once. Gives those without an answer, if the server ended the connection, and what it may have against them.
    async fn attempt<'a>(
        &self,
        line: &Line,
        group: &[&'a Numbered],
        waves: &mut Waves<'_>,
    ) -> Result<Vec<(&'a Numbered, Refusal)>, String> {
        let parcels: Vec<&Parcel> = group.iter().map(|(_, parcel)| parcel).collect();
        let answers = send(line, &parcels, self.settings.retain, self.settings.ack_timeout).await;
        let mut suspects = Vec::new();
        let mut outage = None;
        for (numbered, answer) in group.iter().zip(answers) {
            let (place, _) = numbered;
            match answer {
                Answer::Published => waves.published(*place),
                Answer::Refused(refusal) => {
                    if let Err(reason) = self.refuse(numbered, &refusal, waves) {
                        outage.get_or_insert(reason);
                    }
                }
                Answer::Lost(Loss::Over(refusal)) => suspects.push((*numbered, refusal)),
                Answer::Lost(Loss::Outage(reason)) => {
                    outage.get_or_insert_with(|| {
                        format!("the connection to the MQTT server was lost: {reason}")
                    });
                }
            }
        }
        outage.map_or(Ok(suspects), Err)
    }

    /// The event's failure; or an error, if this client may not publish to the one topic that all events
    /// go to.
    fn refuse(
        &self,
        (place, parcel): &Numbered,
        refusal: &Refusal,
        waves: &mut Waves<'_>,
    ) -> Result<(), String> {
        let failure = refusal.at(&parcel.topic);
        if refusal.is_denied && self.settings.topic.fixed().is_some() {
            return Err(failure.to_string());
        }
        waves.failed(*place, failure);
        Ok(())
    }
}

/// A message, and its place in the batch.
type Numbered = (usize, Parcel);

fn without_reasons(suspects: Vec<(&Numbered, Refusal)>) -> Vec<&Numbered> {
    suspects.into_iter().map(|(suspect, _)| suspect).collect()
}

#[async_trait]
impl Publisher for Mqtt {
    fn name(&self) -> &str {
        &self.name
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        let mut waves = Waves::new(events);
        while let Some(wave) = waves.next() {
            let line = match self.link.get().await {
                Ok(line) => line,
                Err(reason) => return waves.cut_off(reason),
            };
            let mut parcels = Vec::with_capacity(wave.len());
            for place in wave {
                let parcel = Parcel::pack(&self.settings, &self.encoder, &events[place]);
                match parcel.and_then(|parcel| parcel.fits(line.largest).map(|()| parcel)) {
                    Ok(parcel) => parcels.push((place, parcel)),
                    Err(failure) => waves.failed(place, failure),
                }
            }
            if let Err(reason) = self.deliver(&line, &parcels, &mut waves).await {
                return waves.cut_off(reason);
            }
        }
        waves.end()
    }

    async fn health(&self) -> Result<(), Unavailable> {
        self.link.within(LOOK).await.map(drop).map_err(Unavailable::new)
    }
}

impl fmt::Debug for Mqtt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mqtt").field("name", &self.name).field("settings", &self.settings).finish()
    }
}

/// Letters and digits, and no more than 23 of them: what every server takes.
fn new_client_id() -> String {
    format!("outbox{:016x}", RandomState::new().hash_one(std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(more: &serde_json::Value) -> MqttSettings {
        let mut settings = serde_json::json!({ "url": "mqtt://u:hunter2@localhost", "topic": "t/{type}" });
        settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(settings).unwrap()
    }

    #[test]
    fn mistakes_are_named() {
        for (more, said) in [
            (serde_json::json!({ "topic": "a/#" }), "topic: its topic `a/#` has"),
            (serde_json::json!({ "topic": "" }), "topic: its topic is empty"),
            (serde_json::json!({ "client_id": "" }), "client_id: leave it out"),
            (serde_json::json!({ "keep_alive": "4s" }), "keep_alive: use at least 5s"),
            (serde_json::json!({ "tls": { "ca_file": "/dev/null" } }), "tls: the url is mqtt://"),
            (
                serde_json::json!({ "url": "mqtts://h", "tls": { "ca_file": "/dev/null" } }),
                "tls: ca_file: there is no certificate in it",
            ),
        ] {
            let error = Mqtt::new("m", settings(&more)).unwrap_err();
            assert!(error.starts_with(said), "{error}");
        }
    }

    #[test]
    fn nothing_secret_is_shown() {
        let mqtt = Mqtt::new("m", settings(&serde_json::json!({}))).unwrap();
        assert!(!format!("{mqtt:?}").contains("hunter2"));
    }

    #[test]
    fn every_client_has_an_id_of_its_own() {
        let (one, two) = (new_client_id(), new_client_id());
        assert!(one != two && one.len() <= 23 && one.bytes().all(|b| b.is_ascii_alphanumeric()), "{one}");
    }
}
