//! Shapes and colours of a chart.

use std::fmt::Write as _;

use super::{MARGIN, WIDTH};

/// Average width of a letter of the small text, at most.
const LETTER: f64 = 7.2;

/// Colours of the outbox, of hand-written SQL and of the others; each is readable on white and on
/// black.
pub(super) const COLOURS: [&str; 10] = [
    "#2f7de1", "#8a93a0", "#d9822b", "#2e9e6b", "#b04fc4", "#c9485b", "#1f9aa8", "#a58a1c", "#8a6d5b",
    "#7a78e0",
];

/// Alignment of a text.
#[derive(Clone, Copy)]
pub(super) enum Align {
    Left,
    Middle,
    Right,
}

/// A drawing under construction.
pub(super) struct Svg {
    body: String,
}

impl Svg {
    /// Starts a drawing with a title and a subtitle.
    pub(super) fn new(title: &str, subtitle: &str) -> Self {
        let mut svg = Self { body: String::new() };
        svg.text(MARGIN, 32.0, Align::Left, "title", title);
        svg.text(MARGIN, 50.0, Align::Left, "soft", subtitle);
        svg
    }

    pub(super) fn text(&mut self, x: f64, y: f64, align: Align, class: &str, text: &str) {
        let anchor = match align {
            Align::Left => "start",
            Align::Middle => "middle",
            Align::Right => "end",
        };
        let text = escape(text);
        self.push(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" class="{class}">{text}</text>"#
        ));
    }

    pub(super) fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, class: &str) {
        let width = width.max(1.0);
        self.push(format_args!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="2" class="{class}"/>"#
        ));
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.push(format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" class="{class}"/>"#
        ));
    }

    pub(super) fn path(&mut self, points: &[(f64, f64)], class: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.push(format_args!(r#"<polyline points="{}" class="line {class}"/>"#, points.join(" ")));
    }

    pub(super) fn dot(&mut self, (x, y): (f64, f64), class: &str) {
        self.push(format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" class="{class}"/>"#));
    }

    fn push(&mut self, shape: std::fmt::Arguments<'_>) {
        writeln!(self.body, "{shape}").expect("a string takes everything");
    }

    /// The whole file.
    pub(super) fn finish(self, height: f64) -> String {
        let colours: String = COLOURS
            .iter()
            .enumerate()
            .map(|(place, colour)| {
                format!(".c{place}{{fill:{colour}}}.line.c{place}{{stroke:{colour};fill:none}}")
            })
            .collect();
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0}" viewBox="0 0 {WIDTH} {height:.0}" role="img">
<style>
text{{font:12px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}}
.title{{font-size:16px;font-weight:600}}.strong{{font-weight:600}}.soft{{fill:#59636e}}
.card{{fill:#ffffff;stroke:#d1d9e0}}.grid{{stroke:#d1d9e0}}.whisker{{stroke:#1f2328;stroke-opacity:.6}}.goal{{stroke:#c9485b;stroke-width:2}}
.line{{stroke-width:2;stroke-linejoin:round}}.halo{{paint-order:stroke;stroke:#ffffff;stroke-width:4px;font-weight:600}}
{colours}
@media (prefers-color-scheme:dark){{text{{fill:#e6edf3}}.soft{{fill:#9198a1}}.card{{fill:#0d1117;stroke:#3d444d}}.grid{{stroke:#3d444d}}.whisker{{stroke:#e6edf3}}.halo{{stroke:#0d1117}}}}
</style>
<rect x=".5" y=".5" width="{w:.0}" height="{h:.0}" rx="8" class="card"/>
{body}</svg>
"#,
            w = WIDTH - 1.0,
            h = height - 1.0,
            body = self.body
        )
    }
}

/// Width of a small text.
pub(super) fn width_of(text: &str) -> f64 {
    text.chars().count() as f64 * LETTER
}

/// Escapes a text for XML.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // XML does not allow control characters, even escaped.
            letter if letter.is_control() => escaped.push(' '),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_break_out_of_its_text() {
        assert_eq!(escape("a<b> & \"c\"\u{0}</text>é"), "a&lt;b&gt; &amp; &quot;c&quot; &lt;/text&gt;é");
        let mut svg = Svg::new("</style><script>", "x");
        svg.text(0.0, 0.0, Align::Left, "soft", "]]><script>");
        assert!(!svg.finish(100.0).contains("<script"));
    }
}
