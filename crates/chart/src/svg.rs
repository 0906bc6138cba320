//! The output of charts as SVG documents.

use crate::{Chart, bytes, number};
use plotters::prelude::*;
use std::error::Error;

/// Colours that people with any colour vision can distinguish (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(120, 120, 120),
];
const SIZE: (u32, u32) = (800, 500);

impl Chart {
    /// Returns the chart as a complete SVG document.
    ///
    /// # Errors
    /// An error of the plotting library; no chart is known to cause one.
    pub fn svg(&self) -> Result<String, Box<dyn Error + Send + Sync>> {
        let mut out = String::new();
        // The errors of the plotting library are not `Send`, so keep only their text.
        self.draw(&mut out).map_err(|error| error.to_string())?;
        Ok(out)
    }

    fn draw(&self, out: &mut String) -> Result<(), Box<dyn Error>> {
        let (across, up) = self.ranges();
        let margin = (up.1 - up.0) * 0.05;
        let (low, high) = (up.0 - margin, up.1 + margin);
        let root = SVGBackend::with_string(out, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(&self.title, ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(across.0..across.1, low..high)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc("bytes")
            .y_desc(&self.up)
            .x_labels(((across.1 - across.0).round() as usize + 1).clamp(2, 12))
            .x_label_formatter(&|log| bytes(log.exp2()))
            .y_label_formatter(&|log| number(10f64.powf(*log)))
            .draw()?;
        for (size, what) in self.marks.iter().filter(|(size, _)| *size > 0.0) {
            let x = size.log2();
            let line = LineSeries::new([(x, low), (x, high)], BLACK.mix(0.4));
            chart.draw_series(line)?.label(format!("{what}: {}", bytes(*size)));
        }
        for (curve, colour) in self.curves.iter().zip(COLOURS.iter().cycle()) {
            let points: Vec<(f64, f64)> = Chart::logs(curve).collect();
            chart
                .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?
                .label(&curve.name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], colour.stroke_width(2)));
            chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
        }
        if !self.curves.is_empty() {
            let labels = chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw();
            labels?;
        }
        root.present()?;
        Ok(())
    }
}
