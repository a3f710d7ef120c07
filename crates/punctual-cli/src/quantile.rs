//! Quantiles of measured values.

/// The smallest value that `q` of the sorted values do not exceed; 0 of none.
pub(crate) fn quantile(sorted: &[f64], q: f64) -> f64 {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn quantiles_are_measured_values() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(
            (quantile(&values, 0.5), quantile(&values, 0.99), quantile(&values, 1.0)),
            (50.0, 99.0, 100.0)
        );
        assert_eq!((quantile(&[], 0.5), quantile(&[7.0], 0.01)), (0.0, 7.0));
    }
}
