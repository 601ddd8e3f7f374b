//! What is seen while the demo runs: a live display on a terminal, a line a second elsewhere.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::ledger::Tally;
use crate::say;

/// How often the live display is drawn.
const REDRAW: Duration = Duration::from_millis(100);
/// How often a line is printed where there is no terminal.
const LINE: Duration = Duration::from_secs(1);
/// The rate is that of the last so many seconds.
const WINDOW: Duration = Duration::from_secs(2);

const HEADER: &str = "   written  delivered   retried    dead  in flight       rate";

fn columns(tally: &Tally, rate: f64) -> String {
    format!(
        "{:>10} {:>10} {:>9} {:>7} {:>10} {:>8.0}/s",
        HumanCount(tally.written).to_string(),
        HumanCount(tally.delivered).to_string(),
        HumanCount(tally.retried).to_string(),
        HumanCount(tally.dead).to_string(),
        HumanCount(tally.in_flight()).to_string(),
        rate
    )
}

pub(crate) struct Display {
    began: Instant,
    shown: Option<Instant>,
    samples: VecDeque<(Instant, u64)>,
    /// Only on a terminal.
    bar: Option<ProgressBar>,
}

impl Display {
    /// `live`: draw on the terminal, if there is one.
    pub(crate) fn new(events: Option<u64>, live: bool) -> Self {
        let bar = (live && io::stdout().is_terminal()).then(|| match events {
            Some(_) => bar(events, "{bar:30.green} {human_pos} of {human_len} settled"),
            None => bar(None, "{human_pos} settled, Ctrl-C to stop"),
        });
        if bar.is_none() {
            say(format_args!("  time  {HEADER}"));
        }
        Self { began: Instant::now(), shown: None, samples: VecDeque::new(), bar }
    }

    /// Shows where things stand, if it is time to. An error: there is no one to show it to.
    pub(crate) fn show(&mut self, tally: &Tally) -> io::Result<()> {
        let now = Instant::now();
        let pause = if self.bar.is_some() { REDRAW } else { LINE };
        // The first line of a log comes after a second, when there is something to see.
        if now.duration_since(self.shown.unwrap_or(self.began)) < pause {
            return Ok(());
        }
        self.shown = Some(now);
        let columns = columns(tally, self.rate(tally.settled(), now));
        match &self.bar {
            Some(bar) => {
                bar.set_position(tally.settled());
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
        while self.samples.len() > 2 && now.duration_since(self.samples[1].0) >= WINDOW {
            self.samples.pop_front();
        }
        let (since, before) = self.samples[0];
        (settled - before) as f64 / now.duration_since(since).as_secs_f64().max(0.001)
    }

    /// From here on nothing new is written.
    pub(crate) fn stopping(&mut self) {
        if let Some(old) = &mut self.bar {
            // The terminal has echoed the ^C, so nobody knows on which line the cursor is: what was drawn stays.
            old.set_draw_target(ProgressDrawTarget::hidden());
            *old = bar(None, "{human_pos} settled").with_elapsed(self.began.elapsed());
            say("");
        }
        say("Stopping: what is on its way is still delivered. Ctrl-C again to leave at once.");
    }

    /// Leaves the terminal as it was.
    pub(crate) fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A live display: `progress` in the first line, the columns below.
fn bar(events: Option<u64>, progress: &str) -> ProgressBar {
    let template = format!("  {{spinner}} {{elapsed_precise}}  {progress}\n\n  {HEADER}\n  {{msg}}");
    let style = ProgressStyle::with_template(&template).expect("the templates are constants");
    ProgressBar::with_draw_target(events, ProgressDrawTarget::stdout()).with_style(style)
}
