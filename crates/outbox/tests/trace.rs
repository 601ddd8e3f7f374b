//! The trace of the writer continues in the handler. A separate test binary: a process has one
//! subscriber and one propagator.

#![cfg(feature = "opentelemetry")]

use std::sync::{Arc, Mutex};

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
use outbox::{Context, Event, LatchPublisher, Result};
use tracing::Instrument as _;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_goes_from_the_writer_to_the_handler_and_the_publisher() -> Result<()> {
    let spans = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(spans.clone()).build();
    opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new());
    tracing_subscriber::registry()
        .with(tracing_opentelemetry::layer().with_tracer(provider.tracer("test")))
        .init();

    let outbox = outbox::testing::outbox().await;
    let latch = LatchPublisher::expecting(1);
    let seen = Arc::new(Mutex::new(None));
    let theirs = seen.clone();
    let relay = outbox
        .single_node()
        .on_type("handled", move |cx: Context| {
            *theirs.lock().unwrap() = cx.header("traceparent").map(str::to_owned);
            std::future::ready(())
        })
        .forward(["published"], latch.clone())
        .start()
        .await?;
    let write = async {
        outbox.send(Event::new("handled").json(&1)).await?;
        outbox.send(Event::new("published").json(&1)).await?;
        // A header that the application sets itself is kept.
        let own = Event::new("own").header("traceparent", "00-1-2-00").json(&1).build().unwrap();
        assert_eq!(own.header("traceparent"), Some("00-1-2-00"));
        Ok::<(), outbox::Error>(())
    };
    write.instrument(tracing::info_span!("request")).await?;
    relay.idle().await?;
    relay.stop().await?;

    let published = latch.wait(std::time::Duration::from_secs(10)).await.unwrap();
    provider.force_flush().unwrap();
    let spans = spans.get_finished_spans().unwrap();
    let request = spans.iter().find(|span| span.name == "request").expect("the writer's span");
    let handle = spans.iter().find(|span| span.name == "outbox.handle").expect("the handler's span");
    let (trace, parent) = (request.span_context.trace_id(), request.span_context.span_id());
    assert_eq!(handle.span_context.trace_id(), trace);
    let traceparent = format!("00-{trace}-{parent}-01");
    assert_eq!(seen.lock().unwrap().as_deref(), Some(traceparent.as_str()));
    assert_eq!(published[0].header("traceparent"), Some(traceparent.as_str()));
    Ok(())
}
