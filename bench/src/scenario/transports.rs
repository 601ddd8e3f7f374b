//! Transports: a backlog published to a broker, compared with the same publisher fed from memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox::{Completion, Event, Outbox, Outgoing, Publisher};
use outbox_testbed::{Plan, Server};
use outbox_transports::{
    Amqp, AmqpSettings, Mqtt, MqttSettings, Nats, NatsSettings, Redis, RedisSettings, Template,
};
use sqlx::Postgres;
use tokio::task::JoinSet;

use super::Scenario;
use crate::environment::{BATCH, Environment, Scale, fill, payload, per_second, turns};
use crate::figures::{Case, Part, Sheet, Unit};
use crate::text::thousands;

const TABLE: &str = "bench_transports";
const OURS: &str = "outbox to the broker";
const ALONE: &str = "the publisher, fed from memory";

/// Number of concurrent calls of a relay, and number of events in each.
const CALLS: usize = 4;
const EACH: usize = 250;

pub(crate) struct Transports;

#[async_trait]
impl Scenario for Transports {
    fn name(&self) -> &'static str {
        "transports"
    }

    fn title(&self) -> &'static str {
        "Transports"
    }

    fn about(&self, env: &Environment) -> String {
        format!(
            "A backlog of {} events published to a broker that is started for it, with its confirmations, and settled, by \
             `single_node`. Beside it the same publisher fed from memory, {CALLS} calls of {EACH} events at once as a relay makes them: \
             what the broker and its client can do.",
            thousands(env.count(50_000) as f64)
        )
    }

    async fn run(&self, env: &Environment, sheet: &mut Sheet) -> anyhow::Result<()> {
        let events = env.count(50_000);
        let outbox = env.outbox(TABLE, 4).await?;
        let mut cases = Vec::new();
        for broker in [Broker::Nats, Broker::Redis, Broker::Mosquitto, Broker::Rabbitmq] {
            let (name, plan) = broker.plan();
            if broker == Broker::Rabbitmq && env.scale != Scale::Full {
                sheet.notes.push(format!("{name} is left out of a quick run: it takes long to start."));
                continue;
            }
            if !plan.is_here() {
                sheet.notes.push(format!("{name} is not installed here."));
                continue;
            }
            let server = tokio::task::spawn_blocking(move || plan.start()).await?;
            let mut case = Case::of(name, &[OURS, ALONE]);
            for round in 0..env.rounds {
                for who in turns(round, &[OURS, ALONE]) {
                    let publisher = broker.publisher(&server).await?;
                    let time = match who {
                        OURS => {
                            fill(&outbox, events, 0).await?;
                            env.settle(TABLE).await?;
                            relayed(&outbox, publisher).await?
                        }
                        _ => alone(publisher, events).await?,
                    };
                    case.add(round, who, per_second(events, time));
                }
            }
            cases.push(case);
        }
        outbox.close().await;
        sheet.parts.push(Part::bars("To brokers", Unit::EventsPerSecond, cases));
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Broker {
    Nats,
    Redis,
    Mosquitto,
    Rabbitmq,
}

impl Broker {
    fn plan(self) -> (&'static str, Plan) {
        match self {
            Self::Nats => ("NATS JetStream", Plan::nats()),
            Self::Redis => ("Redis Streams", Plan::redis()),
            Self::Mosquitto => ("Mosquitto, MQTT 5", Plan::mosquitto()),
            Self::Rabbitmq => ("RabbitMQ", Plan::rabbitmq()),
        }
    }

    /// Creates a publisher and its destination.
    async fn publisher(self, server: &Server) -> anyhow::Result<Arc<dyn Publisher>> {
        let url = server.url();
        let bench: Template = "bench".parse()?;
        Ok(match self {
            Self::Nats => {
                let client = async_nats::connect(&url).await?;
                let stream = async_nats::jetstream::stream::Config {
                    name: "bench".into(),
                    subjects: vec!["bench".into()],
                    ..Default::default()
                };
                async_nats::jetstream::new(client).get_or_create_stream(stream).await?;
                Arc::new(Nats::new("nats", NatsSettings::new(&url, bench))?)
            }
            Self::Redis => {
                let mut settings = RedisSettings::new(&url, bench);
                settings.create = true;
                Arc::new(Redis::new("redis", settings)?)
            }
            Self::Mosquitto => Arc::new(Mqtt::new("mqtt", MqttSettings::new(&url, bench))?),
            Self::Rabbitmq => {
                let properties = lapin::ConnectionProperties::default();
                let connection = lapin::Connection::connect(&url, properties).await?;
                let channel = connection.create_channel().await?;
                let durable = lapin::options::QueueDeclareOptions { durable: true, ..Default::default() };
                channel.queue_declare("bench".into(), durable, lapin::types::FieldTable::default()).await?;
                let settings = AmqpSettings::new(&url, "", bench);
                Arc::new(Amqp::new("rabbitmq", settings)?)
            }
        })
    }
}

async fn relayed(outbox: &Outbox<Postgres>, publisher: Arc<dyn Publisher>) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let relay = outbox.single_node().completion(Completion::Delete).batch(BATCH).cold_capacity(4_000);
    let relay = relay.workers(CALLS).forward(["bench"], publisher).start().await?;
    relay.idle().await?;
    let time = began.elapsed();
    relay.stop().await?;
    let rest = outbox.admin().backlog().await?.pending;
    anyhow::ensure!(rest == 0, "{rest} events are left");
    Ok(time)
}

async fn alone(publisher: Arc<dyn Publisher>, events: usize) -> anyhow::Result<Duration> {
    let calls = events / EACH;
    let payload = payload();
    let made = (0..calls * EACH).map(|_| Ok(Outgoing::new(Event::new("bench").json(&payload).build()?)));
    let made = Arc::new(made.collect::<anyhow::Result<Vec<_>>>()?);
    let next = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..CALLS {
        let (publisher, made, next) = (publisher.clone(), made.clone(), next.clone());
        tasks.spawn(async move {
            loop {
                let call = next.fetch_add(1, Ordering::Relaxed);
                let Some(batch) = made.chunks(EACH).nth(call) else { return anyhow::Ok(()) };
                publisher.publish_batch(batch).await.map_err(|error| anyhow::anyhow!("{error:?}"))?;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(began.elapsed())
}
