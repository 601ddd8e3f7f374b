//! Trace context of an event: from the span in which the event is written to the span in which it
//! is handled, and on to brokers, in its headers `traceparent` and `tracestate` (W3C Trace
//! Context).
//!
//! With the feature `opentelemetry` this is automatic, through the propagator that the application
//! has set up. Without it, headers that the application sets are passed on like any others.

use std::collections::BTreeMap;

use tracing::Span;

tokio::task_local! {
    /// Correlation id of the event that is being handled.
    static CORRELATION: String;
}

/// Runs a handler of an event with a correlation id, which the events that it writes get as well.
pub(crate) async fn correlated<F: Future>(id: String, handling: F) -> F::Output {
    CORRELATION.scope(id, handling).await
}

/// Correlation id of the event that is being handled in this task.
pub(crate) fn correlation_id() -> Option<String> {
    CORRELATION.try_with(Clone::clone).ok()
}

/// Header names of the trace context.
pub(crate) const HEADERS: [&str; 2] = ["traceparent", "tracestate"];

/// Adds the current trace context to the headers of a new event, unless the caller did.
#[cfg(feature = "opentelemetry")]
pub(crate) fn inject(headers: &mut BTreeMap<String, String>) {
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    struct HeaderInjector<'a>(&'a mut BTreeMap<String, String>);

    impl opentelemetry::propagation::Injector for HeaderInjector<'_> {
        fn set(&mut self, key: &str, value: String) {
            // A tracestate is empty most of the time.
            if !value.is_empty() {
                self.0.entry(key.to_owned()).or_insert(value);
            }
        }
    }

    if HEADERS.iter().any(|name| headers.contains_key(*name)) {
        return;
    }
    let context = Span::current().context();
    opentelemetry::global::get_text_map_propagator(|propagator| {
        propagator.inject_context(&context, &mut HeaderInjector(headers));
    });
}

#[cfg(not(feature = "opentelemetry"))]
pub(crate) fn inject(_: &mut BTreeMap<String, String>) {}

/// Makes a span part of the trace of an event.
#[cfg(feature = "opentelemetry")]
pub(crate) fn continue_trace(span: &Span, headers: &BTreeMap<String, String>) {
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    struct HeaderExtractor<'a>(&'a BTreeMap<String, String>);

    impl opentelemetry::propagation::Extractor for HeaderExtractor<'_> {
        fn get(&self, key: &str) -> Option<&str> {
            self.0.get(key).map(String::as_str)
        }

        fn keys(&self) -> Vec<&str> {
            self.0.keys().map(String::as_str).collect()
        }
    }

    let context = opentelemetry::global::get_text_map_propagator(|propagator| {
        propagator.extract(&HeaderExtractor(headers))
    });
    // Without a subscriber that records spans there is no parent to set.
    let _ = span.set_parent(context);
}

#[cfg(not(feature = "opentelemetry"))]
pub(crate) fn continue_trace(_: &Span, _: &BTreeMap<String, String>) {}
