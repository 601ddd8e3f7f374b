//! Code around every handler and every write: an interceptor sees each attempt and its result, a
//! writer hook may change, suppress or refuse events.
//!
//! ```sh
//! cargo run --example interceptors
//! ```

use outbox::{Context, Event, Failure, HookError, Interceptor, OutboxBuilder, Outcome, WriterHook};

/// Refuses to handle events of a suspended tenant.
struct Suspended(&'static str);

impl Interceptor for Suspended {
    fn before(&self, cx: &Context) -> Result<(), Failure> {
        match cx.tenant_id() {
            Some(tenant) if tenant == self.0 => Err(Failure::dead(format!("{tenant} is suspended"))),
            _ => Ok(()),
        }
    }
}

/// Prints the result of each attempt.
struct Audit;

impl Interceptor for Audit {
    fn after(&self, cx: &Context, result: &Result<Outcome, Failure>) {
        let tenant = cx.tenant_id().unwrap_or("no tenant");
        match result {
            Ok(outcome) => println!("audit: {} of {tenant}: {outcome:?}", cx.event_type()),
            Err(failure) => println!("audit: {} of {tenant}: {failure}", cx.event_type()),
        }
    }
}

/// Suppresses internal events, and refuses events without a tenant.
struct Checks;

impl WriterHook for Checks {
    fn before_write(&self, mut events: Vec<Event>) -> Result<Vec<Event>, HookError> {
        events.retain(|event| !event.event_type().as_str().starts_with("internal."));
        match events.iter().find(|event| event.tenant_id().is_none()) {
            Some(event) => Err(format!("{} has no tenant", event.event_type()).into()),
            None => Ok(events),
        }
    }

    fn after_write(&self, events: &[Event]) {
        println!("hook: {} event written", events.len());
    }
}

#[tokio::main]
async fn main() -> outbox::Result<()> {
    let outbox = OutboxBuilder::new().hook(Checks).sqlite(":memory:").await?;
    outbox.migrate().await?;
    let relay = outbox
        .single_node()
        .interceptor(Audit) // `before` runs in this order, `after` in reverse
        .interceptor(Suspended("globex"))
        .on_type("order.placed", async |_: Context| println!("handler: order placed"))
        .start()
        .await?;

    for tenant in ["acme", "globex"] {
        outbox.send(Event::new("order.placed").tenant(tenant).json(&42)).await?;
        relay.idle().await?;
    }
    let suppressed = outbox.send(Event::new("internal.ping").tenant("acme").json(&())).await?;
    println!("internal event written: {}", suppressed.is_new());
    if let Err(error) = outbox.send(Event::new("order.placed").json(&43)).await {
        println!("refused: {error}");
    }
    relay.stop().await
}
