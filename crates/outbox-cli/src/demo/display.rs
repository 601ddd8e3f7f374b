//! Output while the demo runs: a live display on a terminal, otherwise one line per second.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::ledger::Totals;
use crate::print_escaped;

/// Interval for redrawing the live display.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(1);
/// Time span over which the rate is measured.
const RATE_WINDOW: Duration = Duration::from_secs(2);

const HEADER: &str = "   written  delivered   retried    dead  in flight       rate";

fn columns(totals: &Totals, rate: f64) -> String {
    format!(
        "{:>10} {:>10} {:>9} {:>7} {:>10} {:>8.0}/s",
        HumanCount(totals.written).to_string(),
        HumanCount(totals.delivered).to_string(),
        HumanCount(totals.retried).to_string(),
        HumanCount(totals.dead).to_string(),
        HumanCount(totals.in_flight()).to_string(),
        rate
    )
}

pub(crate) struct Display {
    began: Instant,
    shown: Option<Instant>,
    samples: VecDeque<(Instant, u64)>,
    /// The live display; `None` without a terminal.
    bar: Option<ProgressBar>,
}

impl Display {
    /// Creates the display. `live`: draws on the terminal, if there is one.
    pub(crate) fn new(events: Option<u64>, live: bool) -> Self {
        let bar = (live && io::stdout().is_terminal()).then(|| match events {
            Some(_) => bar(events, "{bar:30.green} {human_pos} of {human_len} settled"),
            None => bar(None, "{human_pos} settled, Ctrl-C to stop"),
        });
        if bar.is_none() {
            print_escaped(format_args!("  time  {HEADER}"));
        }
        Self { began: Instant::now(), shown: None, samples: VecDeque::new(), bar }
    }

    /// Shows the counts if the interval is over. Fails if standard output is closed.
    pub(crate) fn show(&mut self, totals: &Totals) -> io::Result<()> {
        let now = Instant::now();
        let pause = if self.bar.is_some() { REDRAW_INTERVAL } else { LINE_INTERVAL };
        // Without a terminal the first line is printed after one interval, when there are counts to
        // show.
        if now.duration_since(self.shown.unwrap_or(self.began)) < pause {
            return Ok(());
        }
        self.shown = Some(now);
        let columns = columns(totals, self.rate(totals.settled(), now));
        match &self.bar {
            Some(bar) => {
                bar.set_position(totals.settled());
                bar.set_message(columns);
                bar.tick();
                Ok(())
            }
            None => writeln!(io::stdout(), "{:>4} s  {columns}", self.began.elapsed().as_secs()),
        }
    }

    fn rate(&mut self, settled: u64, now: Instant) -> f64 {
        if self.samples.is_empty() {
            self.samples.push_back((self.began, 0));
        }
        self.samples.push_back((now, settled));
        while self.samples.len() > 2 && now.duration_since(self.samples[1].0) >= RATE_WINDOW {
            self.samples.pop_front();
        }
        let (since, before) = self.samples[0];
        (settled - before) as f64 / now.duration_since(since).as_secs_f64().max(0.001)
    }

    /// Shows that the demo is stopping.
    pub(crate) fn stopping(&mut self) {
        if let Some(old) = &mut self.bar {
            // The terminal has echoed ^C, so the line of the cursor is unknown: the old display is
            // left as it is.
            old.set_draw_target(ProgressDrawTarget::hidden());
            *old = bar(None, "{human_pos} settled").with_elapsed(self.began.elapsed());
            print_escaped("");
        }
        print_escaped("Stopping: events in flight are still delivered. Press Ctrl-C again to exit at once.");
    }

    /// Clears the live display.
    pub(crate) fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Creates a live display, with `progress` in the first line and the columns below.
fn bar(events: Option<u64>, progress: &str) -> ProgressBar {
    let template = format!("  {{spinner}} {{elapsed_precise}}  {progress}\n\n  {HEADER}\n  {{msg}}");
    let style = ProgressStyle::with_template(&template).expect("the templates are constants");
    ProgressBar::with_draw_target(events, ProgressDrawTarget::stdout()).with_style(style)
}
