//! The line of JSON that a peer prints.

use serde_json::Value;

/// Result that a peer reports.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Measured {
    /// Name of the peer in its registry.
    pub(crate) peer: String,
    /// The version that ran.
    pub(crate) version: String,
    /// Programming language.
    pub(crate) language: String,
    /// Settings of the peer.
    pub(crate) settings: String,
    /// The figure.
    pub(crate) figure: Figure,
}

/// One figure of a peer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Figure {
    /// A backlog, handled and settled.
    Drain {
        /// Number of events.
        events: u64,
        /// Seconds from the start of the worker.
        seconds: f64,
    },
    /// From the return of the commit to the start of the handler, in milliseconds.
    Latency {
        /// Jobs per second.
        rate: f64,
        /// Number of measured jobs.
        count: u64,
        /// The median.
        p50: f64,
        /// 90th percentile.
        p90: f64,
        /// 99th percentile.
        p99: f64,
        /// Maximum.
        max: f64,
    },
    /// Business transactions, each with a job.
    Write {
        /// Number of concurrent writers.
        writers: u64,
        /// Number of transactions.
        transactions: u64,
        /// Total duration.
        seconds: f64,
    },
}

impl Figure {
    /// Events or transactions per second; `None` for a latency.
    pub(crate) fn per_second(&self) -> Option<f64> {
        match *self {
            Self::Drain { events, seconds } => Some(events as f64 / seconds),
            Self::Write { transactions, seconds, .. } => Some(transactions as f64 / seconds),
            Self::Latency { .. } => None,
        }
    }
}

/// Parses the last line of a peer's output: libraries may print before it.
pub(super) fn parse(output: &str) -> Result<Measured, String> {
    let line = output.lines().rev().find(|line| !line.trim().is_empty()).ok_or("it printed nothing")?;
    let json: Value = serde_json::from_str(line).map_err(|_| format!("it printed no figure but {line:?}"))?;
    let text = |key: &str| {
        json[key].as_str().map(str::to_owned).ok_or_else(|| format!("its figure has no {key}: {line}"))
    };
    let real = |key: &str| {
        let value = json[key].as_f64().filter(|value| value.is_finite());
        value.ok_or_else(|| format!("its figure has no {key}: {line}"))
    };
    let count = |key: &str| real(key).map(|value| value as u64);
    let figure = match text("figure")?.as_str() {
        "drain" => Figure::Drain { events: count("events")?, seconds: real("seconds")? },
        "latency" => Figure::Latency {
            rate: real("rate")?,
            count: count("count")?,
            p50: real("p50_ms")?,
            p90: real("p90_ms")?,
            p99: real("p99_ms")?,
            max: real("max_ms")?,
        },
        "write" => Figure::Write {
            writers: count("writers")?,
            transactions: count("transactions")?,
            seconds: real("seconds")?,
        },
        other => return Err(format!("it printed the figure {other:?}, which is unknown")),
    };
    Ok(Measured {
        peer: text("peer")?,
        version: text("version")?,
        language: text("language")?,
        settings: text("settings")?,
        figure,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = r#""peer":"awa","version":"0.6.9","language":"Rust","settings":"claims of 512""#;

    fn figure(rest: &str) -> Result<Figure, String> {
        parse(&format!("{{{HEAD},{rest}}}\n")).map(|measured| measured.figure)
    }

    #[test]
    fn each_figure_is_read() {
        let drain = figure(r#""figure":"drain","events":20000,"seconds":1.5"#).unwrap();
        assert_eq!(drain, Figure::Drain { events: 20_000, seconds: 1.5 });
        assert_eq!(drain.per_second(), Some(20_000.0 / 1.5));

        let latency =
            r#""figure":"latency","rate":50.0,"count":250,"p50_ms":1,"p90_ms":2.5,"p99_ms":3,"max_ms":4"#;
        let expected = Figure::Latency { rate: 50.0, count: 250, p50: 1.0, p90: 2.5, p99: 3.0, max: 4.0 };
        assert_eq!(figure(latency), Ok(expected));

        let write = r#""figure":"write","writers":8,"transactions":1000,"seconds":0.5"#;
        assert_eq!(figure(write), Ok(Figure::Write { writers: 8, transactions: 1_000, seconds: 0.5 }));
    }

    #[test]
    fn who_ran_and_how_is_read_and_lines_before_are_not() {
        let line = format!(r#"{{{HEAD},"figure":"drain","events":1,"seconds":1}}"#);
        let measured = parse(&format!("migrating\n{line}\n\n")).unwrap();
        assert_eq!(measured.peer, "awa");
        assert_eq!(measured.version, "0.6.9");
        assert_eq!(measured.language, "Rust");
        assert_eq!(measured.settings, "claims of 512");
    }

    #[test]
    fn invalid_output_is_explained() {
        for (output, reason) in [
            ("", "it printed nothing"),
            ("done\n", "it printed no figure but \"done\""),
            ("{}", "its figure has no figure: {}"),
            (r#"{"figure":"drain","events":1}"#, "its figure has no seconds"),
            (r#"{"figure":"speed"}"#, "it printed the figure \"speed\""),
            (r#"{"figure":"drain","events":1,"seconds":1}"#, "its figure has no peer"),
        ] {
            let error = parse(output).unwrap_err();
            assert!(error.starts_with(reason), "{output:?} gave {error:?}");
        }
    }
}
