"""What runs things and shows things: demonstrations, measurements, forecasts."""
