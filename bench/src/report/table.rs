//! A table, for the terminal and for markdown.

/// Rows of cells under a heading.
pub(crate) struct Table {
    heading: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<const N: usize>(heading: [&str; N]) -> Self {
        Self { heading: heading.map(str::to_owned).to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.heading.len(), "a row has a cell for each column");
        self.rows.push(cells.into());
    }

    /// Renders aligned columns, each line with this indent. A cell that repeats the one above it is
    /// left empty, except in a column without a heading, which holds marks.
    pub(crate) fn terminal(&self, indent: &str) -> String {
        let lines = || std::iter::once(&self.heading).chain(&self.rows);
        let width = |column: usize| lines().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.heading.len()).map(width).collect();
        let mut text = String::new();
        let mut above: Option<&Vec<String>> = None;
        for row in lines() {
            text += indent;
            let mut line = String::new();
            // Only the leftmost columns: a figure that happens to be equal is still shown.
            let mut same = !self.heading[0].is_empty();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                same = same && column < 3 && above.is_some_and(|above| above[column] == *cell);
                let shown = if same { "" } else { cell };
                line += shown;
                line += &" ".repeat(width - shown.chars().count() + 2);
            }
            text += line.trim_end();
            text.push('\n');
            above = Some(row);
        }
        text
    }

    pub(crate) fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let escaped: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", escaped.join(" | "))
        };
        let rule = format!("|{}\n", " --- |".repeat(self.heading.len()));
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        line(&self.heading) + &rule + &rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(["case", "who", "ratio"]);
        table.row(["a|b".to_owned(), "ours".to_owned(), "0.9 ×".to_owned()]);
        table.row(["a|b".to_owned(), "theirs, long".to_owned(), "1".to_owned()]);
        table
    }

    #[test]
    fn columns_are_aligned_whatever_their_letters() {
        assert_eq!(
            table().terminal("  "),
            "  case  who           ratio\n  a|b   ours          0.9 ×\n        theirs, long  1\n"
        );
    }

    #[test]
    fn every_row_has_its_mark() {
        let mut table = Table::new(["", "what"]);
        table.row(["pass".to_owned(), "one".to_owned()]);
        table.row(["pass".to_owned(), "two".to_owned()]);
        assert_eq!(table.terminal(""), "      what\npass  one\npass  two\n");
    }

    #[test]
    fn a_bar_in_a_cell_does_not_end_it() {
        assert_eq!(
            table().markdown(),
            "| case | who | ratio |\n| --- | --- | --- |\n| a\\|b | ours | 0.9 × |\n| a\\|b | theirs, long | 1 |\n"
        );
    }
}
