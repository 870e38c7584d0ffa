"""What a system is: frozen, validated plain data, without computing."""
